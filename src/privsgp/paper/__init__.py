"""The paper's ten figures and whether their claims hold."""
