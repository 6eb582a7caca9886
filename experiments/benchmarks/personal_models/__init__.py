"""The accuracy of personal models beside that of PFLlib."""
