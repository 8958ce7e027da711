"""The diagnostics inside other trainers."""
