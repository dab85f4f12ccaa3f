"""`python -m lecritique`."""

from lecritique.cli.main import main

if __name__ == "__main__":
    main()
