#!/bin/sh
# Dumps the database, encrypts the dump and uploads it to the bucket.
set -eu

dump_database() {
    pg_dump --format=custom "$DATABASE_URL" > "$1"
}

upload_snapshot() {
    gpg --encrypt --recipient backups "$1"
    aws s3 cp "$1.gpg" "s3://$BUCKET/$(date +%F).dump.gpg"
}

prune_old() {
    # Keeps a month of nightly snapshots.
    aws s3 ls "s3://$BUCKET/" | awk '{print $4}' | sort | head -n -30 |
        while read -r name; do aws s3 rm "s3://$BUCKET/$name"; done
}

file=$(mktemp)
dump_database "$file"
upload_snapshot "$file"
prune_old
