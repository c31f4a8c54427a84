"""What SGLang does better on a plain CPU: attention, and fewer threads that wake for nothing."""
