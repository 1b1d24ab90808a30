"""The tape of a forward pass: values, and the operations between them in order of execution."""
