//! Measures the SQLite job store: `cargo test --release -p toolgate-host store_speed -- --ignored
//! --nocapture`.
#![allow(clippy::cast_precision_loss, reason = "a rate is not exact")]

use super::*;

const FINISHED: u128 = 100_000;

fn micros(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() - 1) * part / 100].as_micros();
    format!("p50 {} us, p99 {} us", at(50), at(99))
}

async fn timed<T>(work: impl Future<Output = Result<T, JobStoreError>>) -> Duration {
    let began = Instant::now();
    work.await.expect("it is done");
    began.elapsed()
}

#[tokio::test]
#[ignore = "a measurement"]
async fn store_speed_of_jobs() {
    let folder = folder();
    let began = Instant::now();
    let store = open(&folder);
    println!("first open: {:?}", began.elapsed());
    let began = Instant::now();
    drop(store);
    println!("close: {:?}", began.elapsed());
    let began = Instant::now();
    let store = open(&folder);
    println!("second open: {:?}", began.elapsed());
    println!("adopt: {:?}", timed(store.adopt_all()).await);

    let mut times = Vec::new();
    for number in 1..=4000 {
        times.push(timed(store.accept(job(number))).await);
    }
    println!("accept, one after another: {}", micros(times));

    let mut times = Vec::new();
    let began = Instant::now();
    for round in 0..300 {
        let first = 4001 + round * 32;
        times.extend(join_all((first..first + 32).map(|n| timed(store.accept(job(n))))).await);
    }
    let rate = times.len() as f64 / began.elapsed().as_secs_f64();
    println!("accept, 32 at once: {}, {rate:.0}/s", micros(times));

    let mut times = Vec::new();
    for number in 1..=1000 {
        let began = Instant::now();
        store.begin(id(number), at(1)).await.expect("it begins");
        store.finish(id(number), end(2, vec![])).await.expect("it ends");
        times.push(began.elapsed());
    }
    println!("begin and finish: {}", micros(times));

    let mut times = Vec::new();
    for number in 1..=4000 {
        times.push(timed(store.job(id(number))).await);
    }
    println!("job: {}", micros(times));
}

#[tokio::test]
#[ignore = "a measurement"]
async fn store_speed_of_events() {
    let folder = folder();
    let store = open(&folder);
    for number in 2000..2020 {
        store.accept(job(number)).await.expect("it is accepted");
    }
    let mut times = Vec::new();
    for _ in 0..4000 {
        times.push(timed(store.append_events(id(2000), vec![(at(1), printed("a line\n"))])).await);
    }
    println!("append of a line: {}", micros(times));
    for kib in [4, 64] {
        let text = "some text that a program printed\n".repeat(kib * 1024 / 33);
        let began = Instant::now();
        for _ in 0..64 * 1024 / kib {
            store
                .append_events(id(2001), vec![(at(1), printed(&text))])
                .await
                .expect("it is added");
        }
        let rate = 64.0 / began.elapsed().as_secs_f64();
        println!("append of {kib} KiB: {rate:.0} MiB/s");
        let began = Instant::now();
        let many = (0..64 * 1024 / kib).map(|turn| {
            store.append_events(id(2002 + turn as u128 % 16), vec![(at(1), printed(&text))])
        });
        join_all(many).await;
        let rate = 64.0 / began.elapsed().as_secs_f64();
        println!("append of {kib} KiB, many at once: {rate:.0} MiB/s");
    }
    let began = Instant::now();
    let bytes = store.events(id(2001), 0, 1 << 20).await.expect("events").len();
    println!("{bytes} events, 1 MiB: {:?}", began.elapsed());
}

#[tokio::test]
#[ignore = "a measurement"]
async fn store_speed_with_many_that_ended() {
    let folder = folder();
    let store = open(&folder);
    let began = Instant::now();
    for first in (1..=FINISHED).step_by(250) {
        join_all((first..first + 250).map(|number| store.accept(job(number)))).await;
        join_all((first..first + 250).map(|number| store.finish(id(number), end(2, vec![])))).await;
    }
    println!("{FINISHED} accepted and finished: {:?}", began.elapsed());
    let bytes = std::fs::metadata(folder.path().join(FILE_NAME)).expect("a file").len();
    println!("{} bytes a job", u128::from(bytes) / FINISHED);
    println!("accept with {FINISHED} finished: {:?}", timed(store.accept(job(FINISHED + 1))).await);
    drop(store);
    for _ in 0..3 {
        let began = Instant::now();
        let store = open(&folder);
        let opened = began.elapsed();
        println!("open {opened:?}, adopt {:?}", timed(store.adopt_all()).await);
        println!("a page of 50 {:?}", timed(store.list(None, None, 50)).await);
        println!("forget nothing {:?}", timed(store.remove_expired(at(3), usize::MAX)).await);
        println!("forget nothing again {:?}", timed(store.remove_expired(at(3), usize::MAX)).await);
    }
    let store = open(&folder);
    println!("forget 1000 {:?}", timed(store.remove_expired(at(3), 99_000)).await);
    let (forget, accept) = tokio::join!(
        timed(store.remove_expired(at(999), 0)),
        timed(async {
            store.job(id(1)).await?;
            store.accept(job(FINISHED + 2)).await
        })
    );
    println!("forget 1000 more {forget:?}, accept meanwhile {accept:?}");
}
