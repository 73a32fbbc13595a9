"""What moves processor time and bandwidth between the processes of a job, and of jobs that share a node with it.

One module an actuator (`registry`). Each makes `Change`s of a job's own processes; `hand` carries them out, with every
old value on disk first (`journal`), and `repair` puts back what a killed process of ours has left.
"""
