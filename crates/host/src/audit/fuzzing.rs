//! Fuzzes the verification of an audit log that was changed by someone without its key.

use super::chain::{AuditChainBounds, AuditChainEnd, AuditChainLine, AuditKey};
use super::verify::{VerifiedAuditLog, verify_text};

/// Applies `bytes` as edits, separated by the byte 0x1f, to an audit log. Checks that verification
/// succeeds only if nothing changed.
pub(crate) fn fuzz_log(bytes: &[u8]) {
    let key = AuditKey::from_secret(&[7; 32]);
    let (written, head) = sample_log(&key);
    let mut lines: Vec<Vec<u8>> = written.clone();
    for change in bytes.split(|byte| *byte == 0x1f) {
        apply_edit(&mut lines, change);
        // Without the key no line and no head can be forged.
        if let Some(line) = AuditChainLine::parse(change) {
            let before = AuditChainEnd { seq: line.seq.wrapping_sub(1), ..head.link };
            assert!(line.seq == 0 || line.verify_after(before, &key).is_none());
        }
        assert!(AuditChainBounds::parse(change, &key).is_none());
    }
    let written = written.concat();
    let text = lines.concat();
    match verify_text(&text, &key, &head) {
        Err(_) => assert_ne!(text, written, "what was written is whole"),
        // A torn end is reported; nothing else may differ.
        Ok(VerifiedAuditLog { torn_bytes, .. }) => {
            let torn = usize::try_from(torn_bytes).expect("it is in memory");
            assert_eq!(text[..text.len() - torn], written);
        }
    }
}

/// Returns an audit log of a few lines, and the start and end that its head file would record.
fn sample_log(key: &AuditKey) -> (Vec<Vec<u8>>, AuditChainBounds) {
    let mut link = AuditChainEnd::start(3);
    let mut bytes = 0;
    let mut lines = Vec::new();
    for number in 0..5 {
        let body = format!("{{\"n\":{number},\"by\":\"ada\"}}");
        let mut line = Vec::new();
        let added = link.append_line(key, body.as_bytes(), number == 0, &mut line);
        link = added.expect("memory takes it");
        bytes += line.len() as u64;
        lines.push(line);
    }
    let head = AuditChainBounds { first_seq: 4, link, newest_bytes: bytes };
    assert_eq!(AuditChainBounds::parse(&head.encode(key).expect("it fits"), key), Some(head));
    (lines, head)
}

/// Applies the edit `change` to the `lines` of a log. The first byte of `change` is a letter for
/// the operation, then follow the line number, the byte offset and a text.
fn apply_edit(lines: &mut Vec<Vec<u8>>, change: &[u8]) {
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
