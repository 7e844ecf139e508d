"""The index that finds the jobs of a reservation, built while rows are written."""

from django.db import migrations, models

from infra.db.again import AddIndexAnew


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("scheduler", "0097_reservations_of_parts"),
    ]

    operations = [
        AddIndexAnew(
            "jobrequest",
            models.Index(
                condition=models.Q(("reservation__isnull", False)),
                fields=["reservation", "-number"],
                name="request_in_reservation",
            ),
        ),
    ]
