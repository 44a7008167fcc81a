"""The model: posteriors as arrays with documented shapes, and the formulas over them."""
