"""Rules of notifications: kinds, words, schedules, addresses and signatures; no Django."""
