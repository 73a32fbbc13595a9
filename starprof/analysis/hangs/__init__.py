"""Jobs that stand still: which ranks the others wait for, from the calls that are pending."""
