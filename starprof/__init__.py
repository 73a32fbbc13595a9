"""starprof: find, explain and cure stragglers in distributed PyTorch training.

In a training script (all optional; `starprof record -- CMD` needs no change of code):

    import starprof
    starprof.watch(model, optimizer)      # any loop
    with starprof.step(): ...             # loops without an optimizer
    with starprof.span("h2d"): ...        # name a part of the step
"""

__version__ = "0.1.0"
