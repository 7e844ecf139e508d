"""Reservations: what is asked for, chosen, decided and used."""
