//! Measures time and memory of an index of real source code. Run the test by hand, with a folder of
//! sources: `TOOLGATE_TEST_TEXTS=~/.cargo/registry/src cargo nextest run -p toolgate-search
//! --cargo-profile measure --run-ignored only --no-capture speed`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::*;
use crate::rank::rank;
use crate::static_model;

const TEXTS: &str = "TOOLGATE_TEST_TEXTS";
const LINES: &str = "TOOLGATE_TEST_LINES";
const COLD: &str = "TOOLGATE_TEST_COLD";

const QUERIES: [&str; 10] = [
    "parse http header",
    "where are errors converted into io errors",
    "spawn a task on the runtime",
    "read file to string",
    "session stored cookie expiry",
    "deserialize map key from bytes",
    "hash_map entry or_insert",
    "unicode normalization of identifiers",
    "how is the regex compiled into an automaton",
    "u8",
];

fn texts(folder: &Path, found: &mut Vec<(PathBuf, String)>, lines: &mut usize, most: usize) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if *lines >= most {
            return;
        }
        if path.is_dir() {
            texts(&path, found, lines, most);
        } else if path.extension().is_some_and(|it| it == "rs" || it == "py" || it == "md")
            && path.metadata().unwrap().len() < 1 << 20
            && let Ok(text) = fs::read_to_string(&path)
        {
            *lines += text.lines().count();
            found.push((path, text));
        }
    }
}

fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|it| it.starts_with("VmHWM")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn one(snapshot: &IndexSnapshot, query: &str) -> usize {
    let question = snapshot.weigh_question(query).unwrap();
    let near = static_model::embed_query(query);
    let filter = DocumentFilter::default();
    let sought = CandidateSearchQuery {
        static_vector: near.as_deref(),
        model_vector: None,
        filter: &filter,
        limit: 150,
    };
    let found = snapshot.candidates(Some(&question), &sought, &|| true).unwrap();
    rank(&question, &snapshot.statistics(), &found.candidates, true, 10).len()
}

/// Returns the processor time that the current thread has used.
fn busy() -> Duration {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Returns a word that no indexed source contains.
fn unheard(number: u8) -> String {
    format!("qqzz{}{}", char::from(b'a' + number / 26), char::from(b'a' + number % 26))
}

/// Returns the durations of the steps of a search: parsing the query, search by words, search by
/// vectors, and ranking.
fn parts_of_one(snapshot: &IndexSnapshot, query: &str) -> [Duration; 4] {
    let filter = DocumentFilter::default();
    let at = Instant::now();
    let question = snapshot.weigh_question(query).unwrap();
    let asked = at.elapsed();
    let sought = CandidateSearchQuery {
        static_vector: None,
        model_vector: None,
        filter: &filter,
        limit: 150,
    };
    let at = Instant::now();
    let found = snapshot.candidates(Some(&question), &sought, &|| true).unwrap();
    let words = at.elapsed();
    let near = static_model::embed_query(query);
    let sought = CandidateSearchQuery { static_vector: near.as_deref(), ..sought };
    let at = Instant::now();
    snapshot.candidates(None, &sought, &|| true).unwrap();
    let vectors = at.elapsed();
    let at = Instant::now();
    rank(&question, &snapshot.statistics(), &found.candidates, true, 10);
    [asked, words, vectors, at.elapsed()]
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
#[ignore = "measures; needs a folder of sources"]
fn a_million_lines() {
    let from = std::env::var_os(TEXTS).expect("a folder of sources");
    let most = std::env::var(LINES).map_or(1_000_000, |it| it.parse().unwrap());
    let mut all = Vec::new();
    let mut lines = 0;
    texts(from.as_ref(), &mut all, &mut lines, most);
    let bytes: usize = all.iter().map(|(_, text)| text.len()).sum();
    println!("{} files, {lines} lines, {bytes} bytes; RSS before {} MiB", all.len(), peak_mib());
    // Read again one by one, so that memory is the index's.
    let paths: Vec<PathBuf> = all.into_iter().map(|(path, _)| path).collect();
    let folder = tempfile::tempdir().unwrap();
    let place = IndexLocation::Folder(folder.path());
    let (index, _) = SearchIndex::open(place, None).unwrap();
    let mut writer = index.writer().unwrap().unwrap();
    let begun = Instant::now();
    let mut chunking = Duration::ZERO;
    let mut putting = Duration::ZERO;
    let mut committing = Duration::ZERO;
    let mut since = 0;
    for path in &paths {
        let text = fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(&from).unwrap().to_string_lossy().into_owned();
        let at = Instant::now();
        let chunks = toolgate_chunks::chunks(&path, &text);
        chunking += at.elapsed();
        let at = Instant::now();
        let document = IndexDocument {
            path: &path,
            fingerprint: b"0123456789abcdef",
            etag: "0123456789abcdef",
            commit: None,
            lang: Some("rust"),
            tags: &["rust".to_owned(), "code".to_owned()],
            text: &text,
            chunks: &chunks,
        };
        writer.put(&document).unwrap();
        putting += at.elapsed();
        since += text.len();
        if since > 10 << 20 {
            since = 0;
            let at = Instant::now();
            writer.commit().unwrap();
            committing += at.elapsed();
        }
    }
    let at = Instant::now();
    writer.commit().unwrap();
    committing += at.elapsed();
    println!(
        "indexed in {:?}: chunking {chunking:?}, putting {putting:?}, committing {committing:?}",
        begun.elapsed()
    );
    let at = Instant::now();
    writer.finish().unwrap();
    println!("rest {:?}; RSS peak {} MiB", at.elapsed(), peak_mib());
    let size = |name: &str| crate::index::directory::folder_bytes(&folder.path().join(name));
    println!(
        "words {:.3} of the text, static vectors {:.3}",
        size("words") as f64 / bytes as f64,
        size("static") as f64 / bytes as f64
    );
    let mut ends = std::collections::BTreeMap::<String, u64>::new();
    for entry in fs::read_dir(folder.path().join("words")).unwrap() {
        let entry = entry.unwrap();
        let end = entry.path().extension().unwrap_or_default().to_string_lossy().into_owned();
        *ends.entry(end).or_default() += entry.metadata().unwrap().len();
    }
    println!("{ends:?}");
    let now = index.snapshot().unwrap();
    println!("{:?}, {} segments", now.counts(), now.inner.segments.len());
    for query in QUERIES {
        one(&now, query);
        let times = (0..11).map(|_| {
            let at = Instant::now();
            one(&now, query);
            at.elapsed()
        });
        let all = median(times.collect());
        let parts: Vec<[Duration; 4]> = (0..11).map(|_| parts_of_one(&now, query)).collect();
        let parts: Vec<Duration> =
            (0..4).map(|at| median(parts.iter().map(|it| it[at]).collect())).collect();
        let busy = (0..11).map(|_| {
            let before = busy();
            one(&now, query);
            busy() - before
        });
        let busy = median(busy.collect());
        println!("{all:>10.2?}, of that {busy:.2?} on a core: {query}");
        println!("           question, words, vectors, rank {parts:.2?}");
    }
    let at = Instant::now();
    let named = now.find_named("parse_heder", &DocumentFilter::default(), 10).unwrap().len();
    println!("{:>10.2?} {named} names, misspelt", at.elapsed());
    let at = Instant::now();
    now.documents().unwrap();
    println!("{:>10.2?} documents", at.elapsed());
    let mut committed = Vec::new();
    let commits = (0..30).map(|number| {
        let doc =
            TestDocument::new("changed.rs", &format!("changed {}\n\nother", unheard(number)), &[]);
        let at = Instant::now();
        doc.put(&mut writer, b"1");
        writer.commit().unwrap();
        committed.push(at.elapsed());
        assert_eq!(find(&index.snapshot().unwrap(), &unheard(number)).len(), 1);
        at.elapsed()
    });
    let commits: Vec<Duration> = commits.collect();
    println!("{:>10.2?} until it is committed", median(committed));
    let longest = commits.iter().max().copied();
    println!(
        "{:>10.2?} from putting a file until it is found; longest {longest:?}",
        median(commits)
    );
    writer.finish().unwrap();
    for _ in 0..3 {
        let cold = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "index::tests::speed::one_cold", "--ignored", "--nocapture"])
            .env(COLD, folder.path())
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&cold.stdout).into_owned();
        println!("{}", output.lines().find(|it| it.contains("cold")).unwrap_or(&output));
    }
}

#[test]
#[ignore = "run by another test as a separate process"]
fn one_cold() {
    let folder = std::env::var_os(COLD).unwrap();
    let at = Instant::now();
    let (index, _) = SearchIndex::open(IndexLocation::Folder(folder.as_ref()), None).unwrap();
    let opened = at.elapsed();
    let now = index.snapshot().unwrap();
    let found = one(&now, QUERIES[0]);
    println!("cold: {:?}, opening {opened:?}; {found} found; RSS {} MiB", at.elapsed(), peak_mib());
}
