"""`python -m app` is `farlet`, for a checkout or an image where the script is not on the PATH."""

from app.cli import main

main()
