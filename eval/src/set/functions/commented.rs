//! Finds functions in the languages whose doc comments are plain comments above: JavaScript, Go and
//! Ruby.

use tree_sitter::Node;

use super::{FunctionSyntaxWalk, PackageLanguage};

/// Comments directly above an item, which document the item.
#[derive(Default)]
struct ItemLeadingComments {
    text: String,
    /// Row after the last comment. Comments further above the item document nothing.
    next_row: usize,
}

impl FunctionSyntaxWalk<'_> {
    /// Collects the functions among the children of `list`, each with the comments above it.
    pub(super) fn collect_commented(&mut self, list: Node<'_>, lang: PackageLanguage) {
        self.commented_after(ItemLeadingComments::default(), list, lang);
    }

    /// Collects the functions among the children of `list`. `above` are comments that precede the
    /// first child.
    fn commented_after(
        &mut self,
        mut above: ItemLeadingComments,
        list: Node<'_>,
        lang: PackageLanguage,
    ) {
        for child in list.named_children(&mut list.walk()) {
            if child.start_position().row > above.next_row {
                above.text.clear();
            }
            if child.kind() == "comment" {
                let comment = comment_text(self.text_of(child), lang);
                above.text.push_str(&comment.unwrap_or_default());
                above.next_row = child.end_position().row + 1;
                continue;
            }
            // The grammar of Ruby puts the first comment of a class before its body.
            if child.kind() == "body_statement" {
                self.commented_after(std::mem::take(&mut above), child, lang);
                continue;
            }
            match lang {
                PackageLanguage::JavaScript => self.javascript_item(child, &above.text),
                PackageLanguage::Go => self.go_item(child, &above.text),
                PackageLanguage::Ruby => self.ruby_item(child, &above.text),
                PackageLanguage::Rust | PackageLanguage::Python => {}
            }
            above = ItemLeadingComments::default();
        }
    }

    fn javascript_item(&mut self, item: Node<'_>, doc: &str) {
        match item.kind() {
            "export_statement" => {
                if let Some(declared) = item.child_by_field_name("declaration") {
                    self.javascript_item(declared, doc);
                }
            }
            "function_declaration" | "generator_function_declaration" | "method_definition" => {
                self.function(item, doc);
            }
            "class_declaration" => self.enter_named(item, PackageLanguage::JavaScript),
            "lexical_declaration" | "variable_declaration" => {
                if let Some(declared) = item.named_child(0) {
                    let name = declared.child_by_field_name("name");
                    self.function_value(item, name, declared.child_by_field_name("value"), doc);
                }
            }
            "expression_statement" => {
                let assigned =
                    item.named_child(0).filter(|it| it.kind() == "assignment_expression");
                if let Some(assigned) = assigned {
                    let left = assigned.child_by_field_name("left");
                    let name = left.map(|it| it.child_by_field_name("property").unwrap_or(it));
                    self.function_value(item, name, assigned.child_by_field_name("right"), doc);
                }
            }
            _ => {}
        }
    }

    /// Adds `value` if it is a function expression. `item` is the statement that assigns it to
    /// `name`.
    fn function_value(
        &mut self,
        item: Node<'_>,
        name: Option<Node<'_>>,
        value: Option<Node<'_>>,
        doc: &str,
    ) {
        let is_function = |it: &Node<'_>| {
            ["arrow_function", "function_expression", "generator_function"].contains(&it.kind())
        };
        let body = value.filter(is_function).and_then(|it| it.child_by_field_name("body"));
        if let (Some(name), Some(body)) = (name, body) {
            self.named_function(item, name, body, doc);
        }
    }

    fn go_item(&mut self, item: Node<'_>, doc: &str) {
        if !["function_declaration", "method_declaration"].contains(&item.kind()) {
            return;
        }
        let receiver = item.child_by_field_name("receiver").map_or("", |it| self.text_of(it));
        let words = receiver.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let words: Vec<&str> = words.filter(|it| !it.is_empty()).collect();
        let owner = words.get(1).or(words.first()).map(|it| (*it).to_owned());
        // By convention, the comment begins with the name, which nobody would ask for.
        let name = item.child_by_field_name("name").map_or("", |it| self.text_of(it));
        let doc = doc.trim_start();
        let doc = doc.strip_prefix(name).filter(|rest| rest.starts_with(' ')).unwrap_or(doc);
        let depth = self.within.len();
        self.within.extend(owner);
        self.function(item, doc);
        self.within.truncate(depth);
    }

    fn ruby_item(&mut self, item: Node<'_>, doc: &str) {
        match item.kind() {
            "method" | "singleton_method" => self.function(item, doc),
            "class" | "module" => self.enter_named(item, PackageLanguage::Ruby),
            "singleton_class" => self.collect_commented(item, PackageLanguage::Ruby),
            _ => {}
        }
    }

    /// Collects the functions in the body of the class or module `item`.
    fn enter_named(&mut self, item: Node<'_>, lang: PackageLanguage) {
        let Some(body) = item.child_by_field_name("body") else { return };
        let name = item.child_by_field_name("name").map(|it| self.text_of(it).to_owned());
        let depth = self.within.len();
        self.within.extend(name);
        self.collect_commented(if lang == PackageLanguage::Ruby { item } else { body }, lang);
        self.within.truncate(depth);
    }
}

/// Returns true if a folder or file called `name` contains tests, by the conventions of JavaScript
/// and Ruby.
pub(super) fn is_spec(name: &str, lang: PackageLanguage) -> bool {
    let stem = name.rsplit_once('.').map_or(name, |(stem, _)| stem);
    matches!(lang, PackageLanguage::JavaScript | PackageLanguage::Ruby)
        && (["spec", "__tests__"].contains(&name)
            || ["_spec", ".test", ".spec"].iter().any(|it| stem.ends_with(it)))
}

/// Returns the text of a comment without its marks, or `None` if it cannot document an item.
fn comment_text(comment: &str, lang: PackageLanguage) -> Option<String> {
    let line = match lang {
        PackageLanguage::Ruby => comment.strip_prefix('#'),
        PackageLanguage::Go => comment.strip_prefix("//"),
        PackageLanguage::JavaScript | PackageLanguage::Rust | PackageLanguage::Python => None,
    };
    if let Some(line) = line {
        return Some(format!("{}\n", line.trim()));
    }
    let marks = if lang == PackageLanguage::JavaScript { "/**" } else { "/*" };
    let block = comment.strip_prefix(marks)?.strip_suffix("*/")?;
    let lines = block.lines().map(|line| line.trim().trim_start_matches('*').trim());
    Some(format!("{}\n", lines.collect::<Vec<_>>().join("\n")))
}

#[cfg(test)]
mod tests {
    use super::super::parse_file;
    use super::*;

    fn check(path: &str, text: &str, lang: PackageLanguage, expected: &[(&str, &str, &str)]) {
        let functions = parse_file(path, text, lang).unwrap();
        let found: Vec<(&str, &str, &str)> = functions
            .iter()
            .map(|it| (it.unit.within.as_str(), it.unit.name.as_str(), it.doc.as_str()))
            .collect();
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn functions_of_javascript_have_the_doc_comment_above_them() {
        let text = "/** License. */\n\n/** Adds two. */\nexport function add(a, b) { return a + b; }\n\
            // no doc\nconst sub = (a, b) => { return a - b; };\n\
            class Pot {\n  /**\n   * Heats it.\n   */\n  heat() { this.on = true; }\n}\n\
            /** Cools it. */\nexports.cool = function () { off(); };\n";
        check(
            "a.js",
            text,
            PackageLanguage::JavaScript,
            &[
                ("", "add", "Adds two."),
                ("", "sub", ""),
                ("Pot", "heat", "Heats it."),
                ("", "cool", "Cools it."),
            ],
        );
    }

    #[test]
    fn functions_of_go_have_the_comment_above_them_without_their_name() {
        let text = "package pot\n\n// Heat warms the pot.\n// Slowly.\nfunc (p *Pot) Heat() {\n\tp.on = true\n}\n\
            // far\n\nfunc cool() {\n}\n";
        check(
            "a.go",
            text,
            PackageLanguage::Go,
            &[("Pot", "Heat", "warms the pot.\nSlowly."), ("", "cool", "")],
        );
    }

    #[test]
    fn functions_of_ruby_have_the_comment_above_them() {
        let text = "module Kitchen\n  class Pot\n    # Heats it.\n    # @return [void]\n    def heat\n      @on = true\n    end\n  end\nend\n";
        check(
            "a.rb",
            text,
            PackageLanguage::Ruby,
            &[("Kitchen Pot", "heat", "Heats it.\n@return [void]")],
        );
    }
}
