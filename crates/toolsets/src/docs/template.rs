//! Fills in document templates with placeholders such as `{{ name }}`. Templates have no code and
//! no loops, and inserted text is not expanded again.

use serde_json::{Map, Value};

/// The values that replace the placeholders in a document template.
pub(super) struct DocumentTemplateValues<'n> {
    pub(super) title: &'n str,
    pub(super) body: &'n str,
    pub(super) metadata: &'n Map<String, Value>,
}

/// Replaces each placeholder `{{ name }}` in `template` with its value in `names`.
///
/// # Errors
/// Fails if a name is unknown, if a placeholder is not closed, or if the result has more than
/// `bytes_max` bytes.
pub(super) fn fill_template(
    template: &str,
    names: &DocumentTemplateValues<'_>,
    bytes_max: usize,
) -> Result<String, String> {
    let too_long = || format!("the result has more than {bytes_max} bytes");
    let mut text = String::with_capacity(template.len() + names.body.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((name, after)) = after.split_once("}}") else {
            let line = line_of(template, rest.len() - before.len());
            return Err(format!("`{{{{` on line {line} has no `}}}}` after it"));
        };
        text.push_str(before);
        let line = || line_of(template, rest.len() - before.len());
        names
            .write_value(name.trim(), &mut text)
            .map_err(|why| format!("{why} (line {})", line()))?;
        if text.len() > bytes_max {
            return Err(too_long());
        }
        rest = after;
    }
    if text.len() + rest.len() > bytes_max {
        return Err(too_long());
    }
    text.push_str(rest);
    Ok(text)
}

/// Returns the number of the line in `template`, from 1, on which its last `left` bytes begin.
fn line_of(template: &str, left: usize) -> usize {
    template[..template.len() - left].matches('\n').count() + 1
}

impl DocumentTemplateValues<'_> {
    fn write_value(&self, name: &str, into: &mut String) -> Result<(), String> {
        match name {
            "title" => into.push_str(self.title),
            "body" => into.push_str(self.body),
            _ => {
                let path = name.strip_prefix("metadata.").unwrap_or(name);
                let value = self.metadata(path).ok_or_else(|| self.unknown_name_message(name))?;
                match value {
                    Value::String(text) => into.push_str(text),
                    Value::Bool(_) | Value::Number(_) => into.push_str(&value.to_string()),
                    Value::Null => {}
                    Value::Array(_) | Value::Object(_) => {
                        return Err(format!("`{name}` is a list or an object, not text"));
                    }
                }
            }
        }
        Ok(())
    }

    fn metadata(&self, path: &str) -> Option<&Value> {
        let mut parts = path.split('.');
        let first = self.metadata.get(parts.next()?)?;
        parts.try_fold(first, |value, part| match value {
            Value::Object(fields) => fields.get(part),
            Value::Array(items) => items.get(part.parse::<usize>().ok()?),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        })
    }

    fn unknown_name_message(&self, name: &str) -> String {
        let names = ["title", "body"].into_iter().map(str::to_owned);
        let known = names.chain(self.metadata.keys().map(|key| format!("metadata.{key}")));
        let known: Vec<String> = known.take(20).collect();
        format!("unknown name `{name}`; known names: {}", known.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn filled(template: &str) -> Result<String, String> {
        let Value::Object(metadata) =
            json!({ "by": { "name": "Ada" }, "n": 2, "none": null, "list": ["x"], "title": "no" })
        else {
            unreachable!()
        };
        let names =
            DocumentTemplateValues { title: "T", body: "{{ title }} {{", metadata: &metadata };
        fill_template(template, &names, 100)
    }

    #[test]
    fn names_are_filled_in_and_inserted_text_is_not_expanded() {
        for (template, text) in [
            ("# {{ title }}\n{{body}}!", "# T\n{{ title }} {{!"),
            ("{{ metadata.by.name }} {{ by.name }} {{ n }}{{ none }}", "Ada Ada 2"),
            ("{{ list.0 }} {{ metadata.title }} }} { {", "x no }} { {"),
            ("", ""),
        ] {
            assert_eq!(filled(template).as_deref(), Ok(text), "{template}");
        }
    }

    #[test]
    fn an_error_names_the_placeholder_and_its_line() {
        for (template, why) in [
            (
                "\n\n{{ nobody }}",
                "unknown name `nobody`; known names: title, body, metadata.by, \
              metadata.n, metadata.none, metadata.list, metadata.title (line 3)",
            ),
            ("{{ by }}", "`by` is a list or an object, not text (line 1)"),
            ("{{ by.name.x }}", "unknown name `by.name.x`"),
            ("\n{{ title", "`{{` on line 2 has no `}}` after it"),
            ("{{ 1 + 1 }}", "unknown name `1 + 1`"),
            ("{{}}", "unknown name ``"),
        ] {
            let message = filled(template).unwrap_err();
            assert!(message.starts_with(why), "{template}: {message}");
        }
        assert!(filled(&"{{ body }}".repeat(50)).unwrap_err().contains("more than 100 bytes"));
        assert!(filled(&"x".repeat(101)).unwrap_err().contains("more than 100 bytes"));
        assert_eq!(filled(&"x".repeat(100)).unwrap().len(), 100);
    }

    proptest! {
        #[test]
        fn text_without_names_stays_unchanged(template in "[^{]{0,40}") {
            prop_assert_eq!(filled(&template), Ok(template));
        }

        #[test]
        fn any_template_is_filled_without_a_panic(template in "(\\{\\{|\\}\\}|title|body|by\\.|\n|é){0,20}") {
            let _ = filled(&template);
        }
    }
}
