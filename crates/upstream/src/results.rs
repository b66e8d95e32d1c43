//! Answers that are larger than a model is to be given at once: kept here, to be read on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use toolgate_contract::{
    AnyTool, BoxFuture, Caller, Content, Contents, Ctx, Effects, Fault, Output, ResourceSpec,
    ResourceTemplate, Resources, Shape, Text, Tool, ToolError, ToolId, ToolSpec, erase,
};

/// How long a result is kept.
const KEPT: Duration = Duration::from_secs(3600);
/// How many bytes of all.
const KEPT_BYTES: usize = 64 << 20;
/// How much of its beginning and of its end is shown.
const HEAD: usize = 4 << 10;
const TAIL: usize = 2 << 10;
/// How much is read at once, unless it is said.
const PIECE: usize = 16 << 10;
const PIECE_MAX: usize = 256 << 10;
/// How many places of what is sought are told.
const PLACES_MAX: usize = 50;
/// How much is told of the line that one is on, and how much of that stands before it.
const LINE: usize = 300;
const BEFORE: usize = 100;

/// Results that are kept, the newest last. Clones are one.
#[derive(Clone, Default)]
pub struct Results(Arc<Mutex<VecDeque<Kept>>>);

struct Kept {
    id: String,
    whose: Caller,
    tool: ToolId,
    text: Arc<str>,
    since: Instant,
}

impl Results {
    /// The tool that reads them.
    pub fn tool(&self) -> Arc<dyn AnyTool> {
        erase(Read(self.clone()))
    }

    /// Them as resources.
    pub fn resources(&self) -> Arc<dyn Resources> {
        let id = ToolId::new("results.read").expect("an id");
        let guard = ToolSpec::new(id, "Read a long result", Read::ABOUT, Effects::Reads);
        Arc::new(Source { results: self.clone(), guard })
    }

    fn all(&self) -> MutexGuard<'_, VecDeque<Kept>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|kept| kept.since.elapsed() < KEPT);
        all
    }

    /// `output` of `tool`, of which no more than `bytes_max` of text are shown: the rest is kept.
    pub(crate) fn cut(
        &self,
        ctx: &Ctx,
        tool: &ToolId,
        output: Output,
        bytes_max: usize,
    ) -> Result<Output, ToolError> {
        let is_text = |content: &&Content| matches!(content.shown, Shape::Text(_));
        let texts = output.content.iter().filter(is_text).map(|content| match &content.shown {
            Shape::Text(text) => text.len(),
            _ => 0,
        });
        let size = output.text.body.len() + texts.sum::<usize>();
        // What is structured has to keep the shape that was promised.
        if bytes_max == 0 || size <= bytes_max.max(HEAD + TAIL) || output.structured {
            return Ok(output);
        }
        let Output { value, structured, text, content, ending } = output;
        let mut whole = text.body;
        let mut others = Vec::new();
        for one in content {
            match one.shown {
                Shape::Text(text) => {
                    whole.push('\n');
                    whole.push_str(&text);
                }
                _ => others.push(one),
            }
        }
        let mut bits = [0; 8];
        getrandom::fill(&mut bits)
            .map_err(|err| ToolError::because("a result cannot be named", err))?;
        let id = format!("{:016x}", u64::from_le_bytes(bits));
        let (head, tail) = (piece(&whole, 0, HEAD), piece(&whole, whole.len() - TAIL, TAIL));
        let left_out = whole.len() - head.len() - tail.len();
        let body = format!("{head}\n[… {left_out} bytes are left out here …]\n{tail}");
        let uri = format!("result://{id}");
        let note = format!(
            "The whole result has {} bytes and is at {uri} for an hour. Read on with \
             results_read and the id `{id}`: an `offset` from {}, or what to `find`.",
            whole.len(),
            head.len()
        );
        let spec = ResourceSpec::new(uri, format!("result of {tool}")).media_type("text/plain");
        let spec = ResourceSpec { bytes: Some(whole.len() as u64), ..spec };
        others.push(Content::link(spec));
        self.keep(Kept {
            id,
            whose: ctx.caller.clone(),
            tool: tool.clone(),
            text: whole.into(),
            since: Instant::now(),
        });
        let text = Text::body(body).with_note(note);
        Ok(Output { value, structured, text, content: others, ending })
    }

    fn keep(&self, kept: Kept) {
        let mut all = self.all();
        all.push_back(kept);
        let mut bytes: usize = all.iter().map(|kept| kept.text.len()).sum();
        while bytes > KEPT_BYTES && all.len() > 1 {
            let Some(gone) = all.pop_front() else { break };
            bytes -= gone.text.len();
        }
    }

    /// The result `id`, if it is the caller's.
    fn of(&self, caller: &Caller, id: &str) -> Result<Arc<str>, ToolError> {
        let id = id.strip_prefix("result://").unwrap_or(id);
        let all = self.all();
        let found = all.iter().find(|kept| kept.id == id && kept.whose == *caller);
        found.map(|kept| kept.text.clone()).ok_or_else(|| {
            let message = format!(
                "there is no result `{id}`: one is kept for an hour, or until there are newer ones \
                 for its place; call the tool again"
            );
            ToolError::new(Fault::NotFound, message)
        })
    }
}

/// At most `len` bytes of `text` from `at` on, with no character cut in two.
fn piece(text: &str, at: usize, len: usize) -> &str {
    let start = text.floor_char_boundary(at.min(text.len()));
    let end = text.floor_char_boundary((start + len).min(text.len()));
    &text[start..end]
}

/// Where `sought` is in `text` from `from` on, whatever its case: from which byte to which, at most
/// [`PLACES_MAX`] times. However both are, it takes no longer than to read them.
fn places(text: &str, from: usize, sought: &str) -> Vec<(usize, usize)> {
    let sought: Vec<char> = sought.chars().flat_map(char::to_lowercase).collect();
    // How much of its beginning is there still where it goes on otherwise (Knuth, Morris, Pratt).
    let mut again = vec![0; sought.len()];
    let (mut places, mut starts) = (Vec::new(), VecDeque::with_capacity(sought.len()));
    let step = |again: &[usize], mut have: usize, next: char| {
        while have > 0 && sought[have] != next {
            have = again[have - 1];
        }
        if sought[have] == next { have + 1 } else { 0 }
    };
    for at in 1..sought.len() {
        again[at] = step(&again, again[at - 1], sought[at]);
    }
    let from = text.floor_char_boundary(from.min(text.len()));
    let mut have = 0;
    for (at, letter) in text[from..].char_indices() {
        let at = from + at;
        for small in letter.to_lowercase() {
            if starts.len() == sought.len() {
                starts.pop_front();
            }
            starts.push_back(at);
            have = step(&again, have, small);
            if have == sought.len() {
                places.push((starts[0], at + letter.len_utf8()));
                have = 0;
                starts.clear();
                if places.len() == PLACES_MAX {
                    return places;
                }
            }
        }
    }
    places
}

/// What stands around `at` on its line.
fn around(text: &str, at: usize) -> &str {
    let start = text.ceil_char_boundary(at.saturating_sub(BEFORE));
    let before = &text[start..at];
    let start = before.rfind('\n').map_or(start, |end| start + end + 1);
    let line = piece(text, start, LINE);
    let end = line[at - start..].find('\n').map_or(line.len(), |end| at - start + end);
    line[..end].trim_end()
}

struct Read(Results);

/// What is read of a result.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadInput {
    /// The result's id, or its `result://` URI.
    id: String,
    /// From which byte on.
    #[serde(default)]
    offset: usize,
    /// At most how many bytes; 16384 by default.
    #[serde(default)]
    bytes: Option<usize>,
    /// Instead, each place is told where this text is, whatever its case.
    #[serde(default)]
    find: Option<String>,
}

/// A part of a result.
#[derive(Serialize, JsonSchema)]
struct Part {
    /// How many bytes the whole has.
    total: usize,
    /// The part that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    /// Where the next part begins, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<usize>,
    /// Where what was sought is: at most 50 places.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<Vec<Found>>,
}

/// A place where what was sought is.
#[derive(Serialize, JsonSchema)]
struct Found {
    /// Where it begins, to be read from there.
    offset: usize,
    /// What stands around it on its line.
    line: String,
}

impl Tool for Read {
    const NAME: &'static str = "results.read";
    const TITLE: &'static str = "Read a long result";
    const ABOUT: &'static str = "Reads on in a result that was too long to be given at once, or \
                                 finds a text in it. The result's id stands in its note.";
    const EFFECTS: Effects = Effects::Reads;
    const IDEMPOTENT: bool = true;
    type Input = ReadInput;
    type Output = Part;

    async fn run(&self, ctx: &Ctx, input: ReadInput) -> Result<Part, ToolError> {
        let ReadInput { id, offset, bytes, find } = input;
        let text = self.0.of(&ctx.caller, &id)?;
        let total = text.len();
        if let Some(find) = find.filter(|find| !find.is_empty()) {
            let looked = spawn_blocking(move || (places(&text, offset, &find), text)).await;
            let (places, text) =
                looked.map_err(|err| ToolError::because("the search broke off", err))?;
            let next = places.get(PLACES_MAX - 1).map(|(_, end)| *end).filter(|end| *end < total);
            let found = places.into_iter();
            let found =
                found.map(|(at, _)| Found { offset: at, line: around(&text, at).to_owned() });
            return Ok(Part { total, text: None, next, found: Some(found.collect()) });
        }
        let part = piece(&text, offset, bytes.unwrap_or(PIECE).clamp(4, PIECE_MAX));
        let end = text.floor_char_boundary(offset.min(total)) + part.len();
        let next = (end < total).then_some(end);
        Ok(Part { total, text: Some(part.to_owned()), next, found: None })
    }

    fn text(output: &Part) -> Text {
        let Part { total, text, next, found } = output;
        let body = match (text, found) {
            (Some(text), _) => text.clone(),
            (None, Some(found)) => {
                let lines = found.iter().map(|it| format!("{}: {}", it.offset, it.line));
                lines.collect::<Vec<_>>().join("\n")
            }
            (None, None) => String::new(),
        };
        match next {
            Some(next) => {
                Text::body(body).with_note(format!("Go on at `offset` {next} of {total}."))
            }
            None => Text::body(body),
        }
    }
}

struct Source {
    results: Results,
    guard: ToolSpec,
}

impl Resources for Source {
    fn guard(&self) -> &ToolSpec {
        &self.guard
    }

    fn owns(&self, uri: &str) -> bool {
        uri.starts_with("result://")
    }

    fn asked(&self, uri: &str) -> Value {
        json!({ "id": uri })
    }

    fn list<'a>(
        &'a self,
        ctx: &'a Ctx,
        after: Option<&'a str>,
        at_most: usize,
    ) -> BoxFuture<'a, Result<Vec<ResourceSpec>, ToolError>> {
        let all = self.results.all();
        let own = all.iter().filter(|kept| kept.whose == ctx.caller).map(|kept| {
            let name = format!("result of {}", kept.tool);
            let spec = ResourceSpec::new(format!("result://{}", kept.id), name);
            let spec = spec.media_type("text/plain");
            ResourceSpec { bytes: Some(kept.text.len() as u64), ..spec }
        });
        let mut own: Vec<_> = own.collect();
        drop(all);
        own.sort_by(|a, b| a.uri.cmp(&b.uri));
        own.retain(|one| after.is_none_or(|after| one.uri.as_str() > after));
        own.truncate(at_most);
        Box::pin(async { Ok(own) })
    }

    fn templates(&self) -> Vec<ResourceTemplate> {
        vec![
            ResourceTemplate::new("result://{id}", "result")
                .about("A result that was too long to be given at once.")
                .media_type("text/plain"),
        ]
    }

    fn read<'a>(
        &'a self,
        ctx: &'a Ctx,
        uri: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Contents>, ToolError>> {
        Box::pin(async move {
            let text = self.results.of(&ctx.caller, uri)?;
            Ok(vec![Contents::text(uri, "text/plain", &*text)])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ctx(name: &str) -> Ctx {
        Ctx::alone(Caller::named(name), Instant::now() + Duration::from_secs(5))
    }

    fn long() -> Output {
        let lines: Vec<_> = (0..5000).map(|at| format!("line {at} é")).collect();
        Output {
            structured: false,
            ..Output::new(
                Value::Null,
                Text::body(lines.join("\n")),
                toolgate_contract::Ending::Done,
            )
        }
    }

    fn id(output: &Output) -> String {
        let Shape::Link(link) = &output.content[0].shown else { panic!("a link") };
        link.uri.clone()
    }

    #[tokio::test]
    async fn a_long_result_is_cut_and_read_on_to_its_end() {
        let (results, ctx) = (Results::default(), ctx("ann"));
        let tool = ToolId::new("a.b").expect("an id");
        let whole = long().text.body;
        let output = results.cut(&ctx, &tool, long(), 10_000).expect("it is kept");
        assert!(output.text.body.len() < 10_000);
        let read = Read(results.clone());
        let (mut all, mut offset) = (String::new(), 0);
        loop {
            let input = ReadInput { id: id(&output), offset, bytes: Some(7001), find: None };
            let part = read.run(&ctx, input).await.expect("a part");
            all.push_str(&part.text.expect("text"));
            match part.next {
                Some(next) => offset = next,
                None => break,
            }
        }
        assert_eq!(all, whole);
    }

    #[tokio::test]
    async fn what_is_sought_is_found_with_where_to_read_on() {
        let (results, ctx) = (Results::default(), ctx("ann"));
        let tool = ToolId::new("a.b").expect("an id");
        let output = results.cut(&ctx, &tool, long(), 10_000).expect("it is kept");
        let find = Some("LINE 4321".to_owned());
        let input = ReadInput { id: id(&output), offset: 0, bytes: None, find };
        let found = Read(results).run(&ctx, input).await.expect("places").found.expect("places");
        assert_eq!(found.len(), 1);
        assert!(long().text.body[found[0].offset..].starts_with("line 4321 "));
    }

    #[tokio::test]
    async fn each_place_in_a_long_line_is_told_with_what_stands_around_it() {
        let (results, ctx) = (Results::default(), ctx("ann"));
        let tool = ToolId::new("a.b").expect("an id");
        let items: Vec<_> = (0..2000).map(|at| json!({ "name": format!("Äpfel {at}é") })).collect();
        let whole = json!(items).to_string();
        let done = toolgate_contract::Ending::Done;
        let long = Output {
            structured: false,
            ..Output::new(Value::Null, Text::body(whole.clone()), done)
        };
        let output = results.cut(&ctx, &tool, long, 10_000).expect("it is kept");
        let read = Read(results);
        let (mut offset, mut all) = (0, Vec::new());
        loop {
            let find = Some("äPFEL 19".to_owned());
            let input = ReadInput { id: id(&output), offset, bytes: None, find };
            let part = read.run(&ctx, input).await.expect("places");
            for found in part.found.expect("places") {
                assert!(whole[found.offset..].starts_with("Äpfel 19"));
                let piece = &whole[found.offset..found.offset + 9];
                assert!(found.line.contains(piece) && found.line.len() <= LINE, "{}", found.line);
                all.push(found.offset);
            }
            match part.next {
                Some(next) => offset = next,
                None => break,
            }
        }
        // 19, 190 to 199, 1900 to 1999.
        assert_eq!((all.len(), all.is_sorted()), (111, true));
        assert_eq!(places("aabaaabaaaab", 0, "AAAB"), [(3, 7), (8, 12)]);
    }

    #[tokio::test]
    async fn nobody_reads_the_result_of_another() {
        let results = Results::default();
        let tool = ToolId::new("a.b").expect("an id");
        let output = results.cut(&ctx("ann"), &tool, long(), 10_000).expect("it is kept");
        let input = ReadInput { id: id(&output), offset: 0, bytes: None, find: None };
        assert!(Read(results).run(&ctx("bob"), input).await.is_err());
    }

    #[test]
    fn what_is_short_or_structured_is_left_as_it_is() {
        let (results, ctx) = (Results::default(), ctx("ann"));
        let tool = ToolId::new("a.b").expect("an id");
        for output in [long(), Output { structured: true, ..long() }] {
            let bytes_max = if output.structured { 10 } else { 1 << 20 };
            let cut = results.cut(&ctx, &tool, output, bytes_max).expect("nothing is kept");
            assert!(cut.content.is_empty());
        }
    }
}
