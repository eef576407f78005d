"""Files for Prometheus and Grafana, and what makes the dashboards among them."""
