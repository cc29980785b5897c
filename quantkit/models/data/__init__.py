"""What the model is fed with: files, folders, images or Python objects, as one stream of feeds that fit its inputs."""
