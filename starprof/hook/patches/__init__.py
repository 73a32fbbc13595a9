"""The places of torch where spans begin and end, one module each: `install(hook)` puts the wrappers in."""
