"""The protocol between sites, as state machines that open no connection: frames, members, mailbox, links, pair keys."""
