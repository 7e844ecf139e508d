"""Configuration: what operators set of a site as one YAML document, which is exported, compared and applied whole."""
