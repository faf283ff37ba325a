"""From records to figures. Pure."""
