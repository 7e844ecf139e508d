"""`manage.py up`: the whole portal on one machine, with nothing installed but Python."""
