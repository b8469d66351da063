"""``dist-mp report``: one page that shows what runs came to; needs no network and no other file."""
