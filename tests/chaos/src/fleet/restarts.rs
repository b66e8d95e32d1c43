//! Restarts the servers of a fleet one after another behind HAProxy, while a client without a
//! session and a client with a session make calls.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;

use super::LEASE_MS;
use super::balancer::LoadBalancer;
use super::database;
use super::members::FleetMemberStarter;
use super::session_client::{NotificationFollower, reopen};
use crate::requests::{ChaosRequestOutcome, open_session, send_call, send_session_call};
use crate::server::{ChaosRunFolder, ChaosServerProcess};

/// Number of servers behind the load balancer.
const SERVERS: usize = 3;
/// Number of threads that make calls without a session.
const CALLERS: usize = 4;
/// Minimum number of calls without a session: in a long run, and in a short run.
const CALLS_MIN: [usize; 2] = [10_000, 500];
/// Pause between two restarts: in a long run, and in a short run.
const RESTART_PAUSE: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(1)];
/// Minimum duration of a long run.
const LONG_RUN: Duration = Duration::from_secs(60);
/// Pause of a client between two calls.
const CALL_PAUSE: Duration = Duration::from_millis(5);
/// Pause before a client opens a broken notification stream again.
const REOPEN_PAUSE: Duration = Duration::from_millis(50);
/// Time within which clients must have made the minimum number of calls.
const CALLS_TIMEOUT: Duration = Duration::from_secs(600);
/// Tool for calls, which starts no job.
const TOOL: &str = "files_tree";

/// Number of calls and broken streams of all clients, and the failures of their calls.
#[derive(Default)]
struct ChaosClientCounts {
    is_over: AtomicBool,
    calls: AtomicUsize,
    session_calls: AtomicUsize,
    /// Number of notification streams that broke.
    broken_streams: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

impl ChaosClientCounts {
    fn is_running(&self) -> bool {
        !self.is_over.load(Ordering::Acquire)
    }

    fn fail(&self, failure: String) {
        eprintln!("failure: {failure}");
        self.lock_failures().push(failure);
    }

    fn lock_failures(&self) -> MutexGuard<'_, Vec<String>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Running servers behind the load balancer.
struct BalancedFleetServers<'f> {
    members: FleetMemberStarter<'f>,
    servers: Vec<(ChaosServerProcess, SocketAddr)>,
    restarts: usize,
}

/// Restarts servers for `duration`, and prints the outcome in one line. Fails if a client noticed
/// more than the end of its notification stream.
pub(super) fn run(folder: &ChaosRunFolder, duration: Duration) -> anyhow::Result<()> {
    let kind = usize::from(duration < LONG_RUN);
    let (calls_min, pause) = (CALLS_MIN[kind], RESTART_PAUSE[kind]);
    let database = database::PostgresServerProcess::start();
    let host = LoadBalancer::choose_address()?;
    let mut members = FleetMemberStarter::new(folder, database.url(), LEASE_MS)?;
    members.set_host(host);
    let servers = (0..SERVERS).map(|_| members.start_server(&[]));
    let servers = servers.collect::<anyhow::Result<Vec<_>>>()?;
    let addresses: Vec<SocketAddr> = servers.iter().map(|(_, address)| *address).collect();
    let balancer = LoadBalancer::start(host, &addresses, &folder.folder)?;
    let mut servers = BalancedFleetServers { members, servers, restarts: 0 };
    let session = open_session(balancer.address)?;
    let tally = ChaosClientCounts::default();
    scope(|threads| {
        for _ in 0..CALLERS {
            threads.spawn(|| call_without_session(host, &tally));
        }
        threads.spawn(|| call_in_session(host, &session, &tally));
        let follower = NotificationFollower::new(host, &session);
        threads.spawn(|| follow_notifications(follower, &tally));
        let outcome = servers
            .restart_until(duration, pause, || tally.calls.load(Ordering::Relaxed) >= calls_min);
        tally.is_over.store(true, Ordering::Release);
        // The end of the servers ends the notification stream.
        servers.servers.clear();
        outcome
    })?;
    report(&tally, servers.restarts, calls_min)
}

impl BalancedFleetServers<'_> {
    /// Restarts one server after another, with `pause` between them, until `duration` has passed
    /// and `has_enough` returns true.
    fn restart_until(
        &mut self,
        duration: Duration,
        pause: Duration,
        has_enough: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        while started.elapsed() < duration || !has_enough() || self.restarts < SERVERS {
            ensure!(started.elapsed() < duration + CALLS_TIMEOUT, "there were too few calls");
            sleep(pause);
            let (server, address) = self.servers.remove(0);
            server.stop()?;
            let restarted = self.members.start_server_at(&address.to_string(), &[])?;
            self.servers.push(restarted);
            self.restarts += 1;
        }
        Ok(())
    }
}

/// Makes calls without a session until the run is over. Each call must succeed.
fn call_without_session(address: SocketAddr, tally: &ChaosClientCounts) {
    while tally.is_running() {
        check_call(&send_call(address, TOOL, &json!({})), "without a session", tally);
        tally.calls.fetch_add(1, Ordering::Relaxed);
        sleep(CALL_PAUSE);
    }
}

/// Makes calls in the session `session` until the run is over. Each call must succeed at any
/// server.
fn call_in_session(address: SocketAddr, session: &str, tally: &ChaosClientCounts) {
    while tally.is_running() {
        let outcome = send_session_call(address, session, TOOL, &json!({}));
        check_call(&outcome, "in a session", tally);
        tally.session_calls.fetch_add(1, Ordering::Relaxed);
        sleep(CALL_PAUSE);
    }
}

/// Records a failure if a call did not succeed. Ignores a call that ended after the run.
fn check_call(outcome: &ChaosRequestOutcome, kind: &str, tally: &ChaosClientCounts) {
    let failure = match outcome {
        ChaosRequestOutcome::Answered(answer) => {
            let body = String::from_utf8_lossy(&answer.body);
            let is_success = match answer.json() {
                Ok(message) => message["result"]["isError"] == false,
                // An event stream.
                Err(_) => body.contains(r#""isError":false"#),
            };
            if answer.status == 200 && is_success {
                return;
            }
            format!("status {}: {body}", answer.status)
        }
        ChaosRequestOutcome::NotSent => "no connection".to_owned(),
        ChaosRequestOutcome::Unknown(why) => why.clone(),
    };
    if tally.is_running() {
        tally.fail(format!("a call {kind} failed: {failure}"));
    }
}

/// Follows the notifications of a session until the run is over, and opens the stream again
/// whenever it breaks.
fn follow_notifications(mut follower: NotificationFollower, tally: &ChaosClientCounts) {
    while tally.is_running() {
        match reopen(&follower) {
            Ok(stream) => follower.follow(stream),
            Err(err) if tally.is_running() => {
                return tally.fail(format!("the stream is not resumed: {err:#}"));
            }
            Err(_) => return,
        }
        if tally.is_running() {
            tally.broken_streams.fetch_add(1, Ordering::Relaxed);
            sleep(REOPEN_PAUSE);
        }
    }
}

/// Prints the outcome of the run. Fails if a client noticed more than the end of its notification
/// stream.
fn report(tally: &ChaosClientCounts, restarts: usize, calls_min: usize) -> anyhow::Result<()> {
    let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
    let (calls, broken) = (count(&tally.calls), count(&tally.broken_streams));
    let failures = tally.lock_failures();
    println!(
        "{restarts} restarts of {SERVERS} servers behind HAProxy: {calls} calls without a session \
         and {} in one, {} failures; {broken} streams ended and were resumed",
        count(&tally.session_calls),
        failures.len()
    );
    let different: HashSet<&String> = failures.iter().collect();
    ensure!(different.is_empty(), "clients noticed restarts: {different:?}");
    ensure!(calls >= calls_min, "only {calls} calls were made");
    ensure!(broken > 0, "no stream ended, although each server restarted");
    ensure!(broken <= restarts, "more streams ended than servers restarted");
    Ok(())
}
