//! Fuzzes a log that is changed without its key.

use super::chain::{Head, Key, Line, Link};
use super::verify::{Whole, verify_text};

/// Applies `bytes` as edits, separated by the byte 0x1f, to a log. Checks that verification
/// succeeds only if nothing changed.
pub(crate) fn log(bytes: &[u8]) {
    let key = Key::of(&[7; 32]);
    let (written, head) = written(&key);
    let mut lines: Vec<Vec<u8>> = written.clone();
    for change in bytes.split(|byte| *byte == 0x1f) {
        edit(&mut lines, change);
        // Without the key no line and no head can be forged.
        if let Some(line) = Line::of(change) {
            let before = Link { seq: line.seq.wrapping_sub(1), ..head.link };
            assert!(line.seq == 0 || line.after(before, &key).is_none());
        }
        assert!(Head::of(change, &key).is_none());
    }
    let written = written.concat();
    let text = lines.concat();
    match verify_text(&text, &key, &head) {
        Err(_) => assert_ne!(text, written, "what was written is whole"),
        // A torn end is reported; nothing else may differ.
        Ok(Whole { torn_bytes, .. }) => {
            let torn = usize::try_from(torn_bytes).expect("it is in memory");
            assert_eq!(text[..text.len() - torn], written);
        }
    }
}

/// Returns a log of a few lines, and its head.
fn written(key: &Key) -> (Vec<Vec<u8>>, Head) {
    let mut link = Link::none(3);
    let mut bytes = 0;
    let mut lines = Vec::new();
    for number in 0..5 {
        let body = format!("{{\"n\":{number},\"by\":\"ada\"}}");
        let mut line = Vec::new();
        let added = link.add(key, body.as_bytes(), number == 0, &mut line);
        link = added.expect("memory takes it");
        bytes += line.len() as u64;
        lines.push(line);
    }
    let head = Head { from: 4, link, bytes };
    assert_eq!(Head::of(&head.written(key).expect("it fits"), key), Some(head));
    (lines, head)
}

/// Applies one edit: a letter for its kind, then the line, the byte and the text.
fn edit(lines: &mut Vec<Vec<u8>>, change: &[u8]) {
    let [what, which, at, rest @ ..] = change else { return };
    let Some(line) = usize::from(*which).checked_rem(lines.len()) else { return };
    let byte = usize::from(*at).checked_rem(lines[line].len()).unwrap_or(0);
    match what {
        b'd' => drop(lines.remove(line)),
        b'D' => lines.insert(line, lines[line].clone()),
        b's' => lines.swap(line, 0),
        b'i' => drop(lines[line].splice(byte..byte, rest.iter().copied())),
        b'c' => lines[line].truncate(byte),
        b'r' if !lines[line].is_empty() => {
            lines[line][byte] = rest.first().copied().unwrap_or(b'0');
        }
        b'l' => lines.insert(line, rest.to_vec()),
        b'L' => lines.insert(line, [rest, b"\n"].concat()),
        b'j' => drop(lines[line].pop_if(|byte| *byte == b'\n')),
        b'z' => lines.truncate(line),
        b't' => lines.push(rest.to_vec()),
        _ => {}
    }
}
