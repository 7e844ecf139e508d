"""The portal as its operators see it: checks, systems outside, versions, and a support bundle."""
