"""What is believed: arrays with documented shapes, and the formulas over them."""
