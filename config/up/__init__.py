"""`manage.py up`: the whole portal on one machine, under one supervisor, with nothing installed but Python."""
