"""What all REST resources stand on, and the resources of tenants: members and the audit."""
