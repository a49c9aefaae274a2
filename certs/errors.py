"""What can go wrong with a certificate. A module of its own, so that who only catches it loads no cryptography."""


class CertificateError(Exception):
    """A certificate that cannot be had or used; the message says which, why, and what to do."""
