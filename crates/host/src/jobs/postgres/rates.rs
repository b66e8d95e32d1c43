//! Stores the rate limit buckets that the servers of a fleet share.
//!
//! The database stores, for each bucket, the time at which the bucket is full again. The table is
//! not written to the log of the database: after a crash, each bucket is full.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::types::Type;
use toolgate_postgres::PostgresError;

use crate::jobs::stored_form::duration_nanos;
use crate::limits::{RateBucket, RateBucketGrant};

/// Period in nanoseconds. A server takes from a rate limit's bucket as many calls at once as the
/// limit allows in this period.
const SLICE_NANOS: i64 = 50_000_000;

/// Takes calls from a rate limit's bucket. The clock of the database measures the time.
pub(super) async fn take_calls(
    client: &Client,
    workspace: &str,
    bucket: RateBucket,
) -> Result<RateBucketGrant, PostgresError> {
    // `excluded` is a full bucket without the wanted calls, which shows the time.
    let sql = "WITH fleet AS (SELECT greatest(1, count(*)) AS servers FROM toolgate_fleet.servers \
               WHERE workspace = $1 AND NOT has_left AND lease_until > now()), \
               wanted AS (SELECT servers, \
               greatest(1, least($4, greatest($6, $5 / ($3 * servers)))) AS calls, \
               (extract(epoch FROM now()) * 1000000000)::bigint AS at FROM fleet), \
               taken AS (INSERT INTO toolgate_fleet.rates AS rate (workspace, key, full_at, taken) \
               SELECT $1, $2, at + $3 * calls, calls FROM wanted \
               ON CONFLICT (workspace, key) DO UPDATE SET \
               taken = least(excluded.taken, greatest(0, ($3 * $4 - greatest(0, \
               rate.full_at - (excluded.full_at - $3 * excluded.taken))) / $3)), \
               full_at = greatest(rate.full_at, excluded.full_at - $3 * excluded.taken) \
               + $3 * least(excluded.taken, greatest(0, ($3 * $4 - greatest(0, \
               rate.full_at - (excluded.full_at - $3 * excluded.taken))) / $3)) \
               RETURNING taken, full_at) \
               SELECT taken, full_at - at - $3 * ($4 - 1), servers FROM taken, wanted";
    let interval = duration_nanos(bucket.interval).max(1);
    let burst = i64::from(bucket.burst).max(1);
    let at_least = i64::from(bucket.at_least);
    let key = bucket.key.as_slice();
    let params = [
        (&workspace as _, Type::TEXT),
        (&key as _, Type::BYTEA),
        (&interval as _, Type::INT8),
        (&burst as _, Type::INT8),
        (&SLICE_NANOS as _, Type::INT8),
        (&at_least as _, Type::INT8),
    ];
    let row = client.query_typed_one(sql, &params).await?;
    let (calls, wait, servers): (i64, i64, i64) =
        (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
    Ok(RateBucketGrant {
        calls: u32::try_from(calls).unwrap_or(0),
        retry_after: Duration::from_nanos(u64::try_from(wait).unwrap_or(0)),
        servers: u32::try_from(servers).unwrap_or(1),
    })
}

/// Removes the rate limits' buckets that are full.
pub(super) async fn remove_full_buckets(
    client: &Client,
    workspace: &str,
) -> Result<(), PostgresError> {
    let sql = "DELETE FROM toolgate_fleet.rates WHERE workspace = $1 \
               AND full_at < extract(epoch FROM now()) * 1000000000";
    client.execute_typed(sql, &[(&workspace as _, Type::TEXT)]).await?;
    Ok(())
}
