"""The float and the int8 model side by side: how well they agree, how long they take, what is executed."""
