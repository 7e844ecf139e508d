from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0029_recordings_on_a_base"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("outcome__isnull", False)), fields=["outcome", "-request"], name="job_over"
            ),
        ),
    ]
