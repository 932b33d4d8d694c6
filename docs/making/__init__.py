"""What makes the documentation's site: pages generated from the code, pictures, screenshots."""
