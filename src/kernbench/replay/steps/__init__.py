"""What plans are made of: steps that move values between memory and slots."""
