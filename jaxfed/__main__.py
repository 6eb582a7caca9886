"""Command line: jaxfed --method=fedlmd, or python -m jaxfed --method=fedlmd."""

from jaxfed.main import run

if __name__ == '__main__':
    run()
