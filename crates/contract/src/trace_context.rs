//! The trace context of a call, from the headers of W3C Trace Context.

/// The maximum size of a `traceparent`, in bytes. Version 00 has 55.
const PARENT_BYTES_MAX: usize = 256;
/// The maximum number of bytes of `tracestate` and of `baggage`, each.
const STATE_BYTES_MAX: usize = 8192;

/// The trace context of a call (W3C Trace Context).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceContext {
    /// The `traceparent` header: version, trace id, parent id and flags.
    pub parent: String,
    /// The `tracestate` header, if it was sent.
    pub state: Option<String>,
    /// The `baggage` header, if it was sent.
    pub baggage: Option<String>,
}

impl TraceContext {
    /// Parses the trace headers. Returns `None` if `parent` is malformed or longer than 256 bytes.
    /// Drops `state` and `baggage` if they exceed 8192 bytes or are not printable ASCII.
    pub fn parse(parent: &str, state: Option<&str>, baggage: Option<&str>) -> Option<Self> {
        let hex = |part: &str, len: usize| {
            part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let some = |part: &str| part.bytes().any(|b| b != b'0');
        let parts: Vec<&str> = parent.split('-').collect();
        let [version, trace, span, flags, ..] = parts[..] else { return None };
        let sound = hex(version, 2)
            && version != "ff"
            && (parts.len() == 4 || version != "00")
            && hex(trace, 32)
            && some(trace)
            && hex(span, 16)
            && some(span)
            && hex(flags, 2);
        // These values go into audit records and into the environment of programs.
        let short = |text: &str, bytes_max: usize| {
            let visible = text.bytes().all(|b| matches!(b, b' '..=b'~'));
            (text.len() <= bytes_max && visible).then(|| text.to_owned())
        };
        Some(Self {
            // A later version may append fields after the four that are defined today.
            parent: short(parent, PARENT_BYTES_MAX).filter(|_| sound)?,
            state: state.and_then(|state| short(state, STATE_BYTES_MAX)),
            baggage: baggage.and_then(|baggage| short(baggage, STATE_BYTES_MAX)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_context_is_short_and_printable_even_in_later_versions() {
        let known = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let later = known.replacen("00", "01", 1);
        for parent in [known.to_owned(), later.clone(), format!("{later}-more")] {
            assert_eq!(TraceContext::parse(&parent, None, None).expect("a trace").parent, parent);
        }
        let long = "x".repeat(PARENT_BYTES_MAX);
        for end in ["-a\0b", "-a\nLD_PRELOAD=x", "-\u{202e}", &format!("-{long}")] {
            assert_eq!(TraceContext::parse(&format!("{later}{end}"), None, None), None, "{end:?}");
        }
        assert_eq!(TraceContext::parse(&format!("{known}-more"), None, None), None);
    }
}
