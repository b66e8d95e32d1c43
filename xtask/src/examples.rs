//! Runs the examples of the documentation that are marked as runnable.
//!
//! The mark is the word `runnable` after the language of a code block. The blocks of a page run in
//! order, in one empty folder, as they would for a reader without a network:
//!
//! - `sh runnable`: commands, each of which must succeed.
//! - `console runnable`: commands after `$`, each with its output. A command that shows output may
//!   fail, because its output is the check.
//! - `toml runnable`: settings, which are appended to `toolgate.toml`.
//!
//! A block with the word `output` after its language is the output of the example before it.
//! [`matches`] says how output is compared.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, waitpgid,
};

use crate::shell::checkout;

/// Time limit for all examples of one page.
const PAGE_TIME_MAX: Duration = Duration::from_secs(60);

/// Time limit for programs to end after a signal, and for a port to become free.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Port on which servers in examples listen: the default of toolgate.
const PORT: u16 = 8000;

/// Start of each script of examples. A reader would wait until the server is ready, so the script
/// waits, too.
const PROLOGUE: &str = "set -eu
wait_for_server() { until (: < /dev/tcp/127.0.0.1/8000) 2> /dev/null; do sleep 0.1; done; }
";

/// Runs the runnable examples of all pages with the executable `toolgate`. Prints one line for each
/// page, and the output of each page that fails.
pub(crate) fn run(toolgate: &Path) -> anyhow::Result<()> {
    // The servers that a script leaves behind become children of this process, which reaps them.
    set_child_subreaper(Some(getpid()))?;
    let mut total = 0;
    let mut failed = Vec::new();
    for page in pages()? {
        let text = fs::read_to_string(checkout().join(&page))?;
        let examples = parse(&text).with_context(|| page.clone())?;
        if examples.is_empty() {
            continue;
        }
        total += examples.len();
        let begun = Instant::now();
        let outcome = run_page(&page, &examples, toolgate);
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        let seconds = begun.elapsed().as_secs_f64();
        eprintln!("{word:<7} {page}: {} run, {seconds:.1} s", examples.len());
        if let Err(err) = outcome {
            eprintln!("{err:#}");
            failed.push(page);
        }
    }
    if !failed.is_empty() {
        bail!("the examples of {} failed", failed.join(", "));
    }
    eprintln!("{total} examples run");
    Ok(())
}

/// Returns the paths of the pages that may have examples, relative to the checkout.
fn pages() -> anyhow::Result<Vec<String>> {
    let mut pages = Vec::new();
    for folder in ["", "docs/guide/", "docs/reference/", "docs/design/"] {
        for entry in fs::read_dir(checkout().join(folder))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.ends_with(".md") {
                pages.push(format!("{folder}{name}"));
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Runnable example on a page of the documentation.
struct DocumentedExample {
    /// Line number of the first command of the example on its page.
    line: usize,
    /// Commands of the example, as a script for bash.
    script: String,
    /// Lines that the commands must print, in this order. Other lines may come between them.
    output: Vec<String>,
}

/// Returns the runnable examples in `text`, the text of a page.
fn parse(text: &str) -> anyhow::Result<Vec<DocumentedExample>> {
    let mut examples: Vec<DocumentedExample> = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let is_inside = |(_, line): &(usize, &str)| line.trim() != "```";
        let inside = lines.by_ref().take_while(is_inside);
        let block: Vec<&str> =
            inside.map(|(_, line)| line.get(indent..).unwrap_or_default()).collect();
        let line = number + 1;
        match info.split_once(' ') {
            Some(("sh", "runnable")) => {
                examples.push(DocumentedExample {
                    line,
                    script: script(&block),
                    output: Vec::new(),
                });
            }
            Some(("toml", "runnable")) => {
                let settings = block.join("\n");
                let script = format!("cat >> toolgate.toml <<'SETTINGS'\n{settings}\nSETTINGS\n");
                examples.push(DocumentedExample { line, script, output: Vec::new() });
            }
            Some(("console", "runnable")) => examples.extend(transcript(line, &block)),
            Some((_, "output")) => {
                let example = examples.last_mut();
                let example =
                    example.with_context(|| format!("line {number}: output of nothing"))?;
                example.output.extend(block.iter().map(|&line| line.to_owned()));
            }
            Some((_, "runnable")) => bail!("line {number}: nothing runs `{info}`"),
            _ => {}
        }
    }
    Ok(examples)
}

/// Returns a script that runs `commands`, and waits for each server that they start.
fn script(commands: &[&str]) -> String {
    let mut script = String::new();
    for command in commands {
        script += command;
        script += if command.ends_with(" &") { "\nwait_for_server\n" } else { "\n" };
    }
    script
}

/// Returns an example for each command in `block`, which has commands and their output. `first` is
/// the line number of the first line of the block.
fn transcript(first: usize, block: &[&str]) -> Vec<DocumentedExample> {
    let mut examples: Vec<DocumentedExample> = Vec::new();
    let mut is_continued = false;
    for (line, text) in (first..).zip(block) {
        let command = text.strip_prefix("$ ");
        if let Some(command) = command {
            examples.push(DocumentedExample {
                line,
                script: script(&[command]),
                output: Vec::new(),
            });
        } else if let Some(example) = examples.last_mut() {
            if is_continued {
                example.script += &script(&[text]);
            } else {
                example.output.push((*text).to_owned());
            }
        }
        is_continued = (command.is_some() || is_continued) && text.ends_with('\\');
    }
    for example in examples.iter_mut().filter(|example| !example.output.is_empty()) {
        example.script = format!("{{\n{}}} || true\n", example.script);
    }
    examples
}

/// Runs the examples of one page in an empty folder. Fails if one of them fails.
fn run_page(page: &str, examples: &[DocumentedExample], toolgate: &Path) -> anyhow::Result<()> {
    let folder = ExampleTempFolder::new()?;
    let place = |name: &str| folder.0.join(name);
    for name in ["bin", "home", "work"] {
        fs::create_dir(place(name))?;
    }
    symlink(toolgate, place("bin/toolgate"))?;
    let mark = |example: &DocumentedExample| format!("==> {page}:{}", example.line);
    let blocks = examples
        .iter()
        .map(|example| format!("printf '\\n%s\\n' '{}'\n{}", mark(example), example.script));
    let blocks: String = blocks.collect();
    // The last line of an example may have no end, and the server prints more when it stops.
    fs::write(place("script"), format!("{PROLOGUE}{blocks}echo\n"))?;

    wait_for_port()?;
    let log = File::create(place("output"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let child = Command::new("bash")
        .arg(place("script"))
        .current_dir(place("work"))
        .env_clear()
        .env("PATH", format!("{}:{path}", place("bin").display()))
        .env("HOME", place("home"))
        .env("LANG", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("cannot start bash")?;
    let group = Pid::from_child(&child);
    let ended = wait(child)?;
    end(group);

    let output = String::from_utf8_lossy(&fs::read(place("output"))?).into_owned();
    if !ended.is_some_and(|status| status.success()) {
        let reached = output.lines().rev().find_map(|line| line.strip_prefix("==> "));
        let reason = ended.map_or_else(
            || format!("no end after {} s", PAGE_TIME_MAX.as_secs()),
            |status| status.to_string(),
        );
        bail!("{output}\n{}: {reason}", reached.unwrap_or(page));
    }
    for example in examples {
        let mark = mark(example);
        let printed = output.split_once(&format!("{mark}\n")).map_or("", |(_, after)| after);
        let mut printed = printed.lines().map(str::trim);
        let shown = example.output.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        for shown in shown {
            if !printed.any(|line| matches(shown, line)) {
                bail!("{output}\n{mark}: the output has no line `{shown}`");
            }
        }
    }
    Ok(())
}

/// Waits until no program listens on the port of the examples.
fn wait_for_port() -> anyhow::Result<()> {
    let begun = Instant::now();
    while let Err(err) = TcpListener::bind(("127.0.0.1", PORT)) {
        if begun.elapsed() > END_TIME_MAX {
            bail!("the examples need the port {PORT} of 127.0.0.1: {err}");
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Waits for a process to end. Returns `None` if that takes longer than [`PAGE_TIME_MAX`].
fn wait(mut child: Child) -> anyhow::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    while begun.elapsed() < PAGE_TIME_MAX {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(None)
}

/// Ends all processes of the process group `group`, and waits for them.
fn end(group: Pid) {
    for signal in [Signal::TERM, Signal::KILL] {
        let _ = kill_process_group(group, signal);
        let begun = Instant::now();
        while begun.elapsed() < END_TIME_MAX {
            match waitpgid(group, WaitOptions::NOHANG) {
                Err(_) => return,
                Ok(Some(_)) => {}
                Ok(None) => sleep(Duration::from_millis(20)),
            }
        }
    }
}

/// Returns true if the line `printed` by a program matches the line `shown` on a page. Words that
/// differ from run to run match each other: words with a digit, such as sizes, times and ids, and
/// paths that begin with `/home/ada`. The character `…` in `shown` matches any text.
fn matches(shown: &str, printed: &str) -> bool {
    let mut parts = fixed_parts(shown).into_iter();
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = printed.strip_prefix(first.as_str()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part.as_str()) else { return false };
        rest = after;
    }
    rest.ends_with(&last)
}

/// Returns the parts of the line `shown` that are equal in each run, without paths and numbers.
fn fixed_parts(shown: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut rest = shown;
    while let Some(first) = rest.chars().next() {
        let until = |is_part: fn(char) -> bool| rest.find(|it| !is_part(it)).unwrap_or(rest.len());
        let is_path = rest.starts_with("/home/ada");
        let length = match first {
            _ if is_path => until(|it| it.is_ascii_alphanumeric() || "/._-".contains(it)),
            'a'..='z' | 'A'..='Z' | '0'..='9' => until(|it| it.is_ascii_alphanumeric()),
            _ => first.len_utf8(),
        };
        let (word, after) = rest.split_at(length);
        if is_path || first == '…' || word.contains(|it: char| it.is_ascii_digit()) {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(word);
        }
        rest = after;
    }
    parts
}

/// Temporary folder in which the examples of a page run. Dropping it deletes the folder.
struct ExampleTempFolder(PathBuf);

impl ExampleTempFolder {
    fn new() -> anyhow::Result<Self> {
        let folder = std::env::temp_dir().join(format!("toolgate-examples-{}", std::process::id()));
        fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        Ok(Self(folder))
    }
}

impl Drop for ExampleTempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::{matches, parse};

    #[test]
    fn a_line_matches_when_only_numbers_ids_and_paths_differ() {
        assert!(matches("toolgate: exit code 0 in 111 ms", "toolgate: exit code 0 in 7 ms"));
        assert!(matches("+print(\"hello, agent\")", "+print(\"hello, agent\")"));
        assert!(matches("etag 2daf8aaf; 22 bytes", "etag 9f0c1177; 22 bytes"));
        assert!(matches("at /home/ada/src/app", "at /tmp/x/work"));
        assert!(matches("{\"id\":1,…}", "{\"id\":1,\"result\":{}}"));
        assert!(!matches("{\"id\":1,…}", "{\"error\":1,\"result\":{}}"));
        assert!(!matches("?? hello.py", " M hello.py"));
        assert!(!matches("exit code 0 in 5 ms", "exit code 0 in 5 ms, cut"));
    }

    #[test]
    fn marked_blocks_of_a_page_are_its_examples() {
        let page = "
```sh
not run
```
1. Run it:

   ```sh runnable
   cat > notes <<EOF
     indented
   EOF
   ```

```text output
done
```
```console runnable
$ toolgate serve &
$ one \\
  two
refused
```
";
        let examples = parse(page).unwrap();
        let all: Vec<_> =
            examples.iter().map(|it| (it.line, it.script.as_str(), it.output.join("\n"))).collect();
        let expected = [
            (8, "cat > notes <<EOF\n  indented\nEOF\n", "done".to_owned()),
            (17, "toolgate serve &\nwait_for_server\n", String::new()),
            (18, "{\none \\\n  two\n} || true\n", "refused".to_owned()),
        ];
        assert_eq!(all, expected);
        assert!(parse("```python runnable\n```\n").is_err());
    }
}
