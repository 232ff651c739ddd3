"""From measurements to one decision tree, by way of a teacher."""
