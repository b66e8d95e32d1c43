//! Formats JSON as Python's `repr` does: `{'a': [1, 1.5, True, None]}`.

use std::fmt::{self, Write as _};

use serde_json::{Number, Value};

/// The maximum number of decimal digits that are needed to identify a 64-bit float.
const FLOAT_DIGITS_MAX: usize = 17;

/// A JSON value that is displayed as Python's `repr` would show it.
pub(super) struct PythonRepr<'a>(pub(super) &'a Value);

impl fmt::Display for PythonRepr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("None"),
            Value::Bool(true) => f.write_str("True"),
            Value::Bool(false) => f.write_str("False"),
            Value::Number(number) => write_number(f, number),
            Value::String(text) => fmt::Display::fmt(&PythonStringRepr(text), f),
            Value::Array(items) => {
                f.write_char('[')?;
                for (nth, item) in items.iter().enumerate() {
                    f.write_str(if nth > 0 { ", " } else { "" })?;
                    fmt::Display::fmt(&PythonRepr(item), f)?;
                }
                f.write_char(']')
            }
            Value::Object(fields) => {
                f.write_char('{')?;
                for (nth, (key, value)) in fields.iter().enumerate() {
                    f.write_str(if nth > 0 { ", " } else { "" })?;
                    write!(f, "{}: {}", PythonStringRepr(key), PythonRepr(value))?;
                }
                f.write_char('}')
            }
        }
    }
}

/// A text that is displayed as Python's `repr` would show it.
pub(super) struct PythonStringRepr<'a>(pub(super) &'a str);

impl fmt::Display for PythonStringRepr<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quote = if self.0.contains('\'') && !self.0.contains('"') { '"' } else { '\'' };
        f.write_char(quote)?;
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                c if c == quote => write!(f, "\\{c}")?,
                c if is_printable(c) => f.write_char(c)?,
                c if u32::from(c) <= 0xff => write!(f, "\\x{:02x}", u32::from(c))?,
                c if u32::from(c) <= 0xffff => write!(f, "\\u{:04x}", u32::from(c))?,
                c => write!(f, "\\U{:08x}", u32::from(c))?,
            }
        }
        f.write_char(quote)
    }
}

/// Returns true if Python's `repr` shows `c` unescaped.
///
/// Rust's `escape_debug` uses the same Unicode categories. It differs only for combining characters
/// at the start of a text, so `c` is tested after a letter.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    let mut bytes = [b'a', 0, 0, 0, 0];
    let len = c.encode_utf8(&mut bytes[1..]).len();
    let text = std::str::from_utf8(&bytes[..=len]).unwrap_or_default();
    text.escape_debug().nth(1) == Some(c)
}

fn write_number(f: &mut fmt::Formatter<'_>, number: &Number) -> fmt::Result {
    match number.as_f64().filter(|_| number.is_f64() && !exceeds_float(number)) {
        Some(float) => write_float(f, float),
        None => fmt::Display::fmt(number, f),
    }
}

/// Returns true if a 64-bit float cannot represent all digits of `number`. Python would then show a
/// number that differs from the validated one.
fn exceeds_float(number: &Number) -> bool {
    let digits = number.as_str().split(['e', 'E']).next().unwrap_or_default();
    let digits = digits.trim_start_matches(['-', '0', '.']);
    // Zeros at the end of an integer are part of its magnitude only.
    let digits = digits.trim_end_matches(['0', '.']);
    digits.bytes().filter(u8::is_ascii_digit).count() > FLOAT_DIGITS_MAX
}

/// Writes the shortest digits that parse back to `float`. Uses an exponent below 1e-4 and from
/// 1e16, as Python does.
fn write_float(f: &mut fmt::Formatter<'_>, float: f64) -> fmt::Result {
    let magnitude = float.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return write!(f, "{float:?}");
    }
    let short = format!("{float:e}");
    let (digits, exponent) = short.split_once('e').unwrap_or((&short, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |it| ('-', it));
    write!(f, "{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolgate_contract::exact_json;

    use super::*;

    #[test]
    fn json_is_formatted_like_python() {
        let value = json!({ "a": [1, -2, 1.5, true, false, null], "b": {}, "": [] });
        assert_eq!(
            PythonRepr(&value).to_string(),
            "{'a': [1, -2, 1.5, True, False, None], 'b': {}, '': []}"
        );
    }

    #[test]
    fn text_is_quoted_like_python() {
        for (text, quoted) in [
            ("x", "'x'"),
            ("it's", "\"it's\""),
            ("it's \"so\"", "'it\\'s \"so\"'"),
            ("a\\b\n\r\t", "'a\\\\b\\n\\r\\t'"),
            ("\0\x1b\x7f", "'\\x00\\x1b\\x7f'"),
            ("é\u{a0}\u{ad}\u{2028}", "'é\\xa0\\xad\\u2028'"),
            ("e\u{301}", "'e\u{301}'"),
            ("\u{301}", "'\u{301}'"),
            ("\u{1f600}\u{e0001}", "'\u{1f600}\\U000e0001'"),
        ] {
            assert_eq!(PythonStringRepr(text).to_string(), quoted);
        }
    }

    #[test]
    fn numbers_with_more_digits_than_a_float_are_shown_as_they_are() {
        for (text, written) in [
            ("12345678901234567890.5", "12345678901234567890.5"),
            ("100.00000000000000000001", "100.00000000000000000001"),
            ("100.00000000000000000000", "100.0"),
            ("0.00000000000000000000015", "1.5e-22"),
            ("1.2345678901234567e3", "1234.5678901234567"),
        ] {
            let number = exact_json::parse(text).expect("a number");
            assert_eq!(PythonRepr(&number).to_string(), written);
        }
    }

    #[test]
    fn numbers_are_formatted_like_python() {
        for (number, written) in [
            (json!(1.0), "1.0"),
            (json!(-0.0), "-0.0"),
            (json!(0.1), "0.1"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(1.5e-7), "1.5e-07"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e16), "1e+16"),
            (json!(1.2345e22), "1.2345e+22"),
            (json!(1e300), "1e+300"),
            (json!(-2.5e-300), "-2.5e-300"),
            (json!(u64::MAX), "18446744073709551615"),
        ] {
            assert_eq!(PythonRepr(&number).to_string(), written);
        }
    }
}
