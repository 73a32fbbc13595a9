"""The tables, grouped by what they are about; `starprof.model.schema` collects them."""
