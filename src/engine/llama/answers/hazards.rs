//! What llama.cpp would crash on, take for ever for, or silently leave unbound.

use super::*;
use crate::engine::ChatTemplate;

fn probe(name: &str, call: impl FnOnce() -> String) {
    let at = std::time::Instant::now();
    let said = call();
    println!("PROBE {name}: {} ms: {}", at.elapsed().as_millis(), said.chars().take(300).collect::<String>());
}

fn tool_of(parameters: &str) -> String {
    format!(r#"{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}"#)
}

fn ask_tool(template: &LlamaTemplate, parameters: &str) -> String {
    let wanted = Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() };
    match template.answer(&[tool_of(parameters)], &wanted, false) {
        Ok(answer) => format!("ok {}", answer.rules.grammar.as_ref().map_or(0, |g| g.text.len())),
        Err(error) => error.to_string(),
    }
}

fn ask_schema(template: &LlamaTemplate, schema: &str) -> String {
    let wanted = Wanted { shape: Shape::Schema(schema.into()), ..Wanted::default() };
    match template.answer(&[], &wanted, false) {
        Ok(answer) => format!("ok {:?}", answer.rules.grammar.as_ref().map(|g| (g.is_lazy, g.text.len()))),
        Err(error) => error.to_string(),
    }
}

fn smol() -> std::sync::Arc<LlamaTemplate> {
    crate::engine::llama::tests::smollm2().template.clone()
}

#[test]
fn probe_cycle() {
    for p in [r##"{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##, r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}"##] {
        probe("cycle schema", || ask_schema(&smol(), p));
        probe("cycle tool", || ask_tool(&smol(), p));
    }
}
#[test]
fn probe_types() {
    let mut p = String::from(r#"{"type":"string"}"#);
    for n in 0..8 {
        p = format!(r#"{{"type":["object","null","array","string"],"properties":{{"a":{p}}}}}"#);
        if n > 5 {
            probe("types", || ask_tool(&smol(), &p));
        }
    }
}
#[test]
fn probe_optional() {
    for n in [100, 200, 400] {
        let props: Vec<String> = (0..n).map(|i| format!(r#""property{i}":{{"type":"string"}}"#)).collect();
        probe("optional", || ask_tool(&smol(), &format!(r#"{{"type":"object","properties":{{{}}}}}"#, props.join(","))));
    }
}
#[test]
fn probe_names() {
    let name = "é".repeat(100_000);
    probe("names", || ask_tool(&smol(), &format!(r#"{{"type":"object","properties":{{"{name}":{{"type":"string"}}}}}}"#)));
}
#[test]
fn probe_refs() {
    let n = 20000;
    let defs: Vec<String> = (0..n).map(|i| format!(r##""d{i}":{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/d{}"}}}}}}"##, (i + 1) % n)).collect();
    let p = format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{}}}}}"##, defs.join(","));
    probe("refs", || ask_schema(&smol(), &p));
}
#[test]
fn probe_deep_answer() {
    let answer = smol().answer(&[], &Wanted { shape: Shape::Json, ..Wanted::default() }, false).unwrap();
    for n in [100, 190, 1000, 10_000, 100_000] {
        let text = format!("{{\"a\":{}", "[".repeat(n));
        probe("deep", || format!("{:?}", answer.reader.read(&text, false).map(|p| p.content.len())));
    }
}
#[test]
fn probe_500() {
    let tools: Vec<String> = (0..500).map(|i| format!(r#"{{"type":"function","function":{{"name":"f{i}","parameters":{{"type":"object","properties":{{"a":{{"type":"string"}},"b":{{"type":"integer"}},"c":{{"enum":["x","y"]}}}}}}}}}}"#)).collect();
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let wanted = Wanted { tool_choice: choice, ..Wanted::default() };
        let template = smol();
        probe("500", || format!("{:?}", template.answer(&tools, &wanted, false).map(|a| a.rules.grammar.as_ref().map(|g| g.text.len())).map_err(|e| e.to_string())));
    }
}
#[test]
fn probe_empty_schema() {
    for p in ["{}", r#"{"description":"x"}"#, r#"{"$defs":{}}"#] {
        probe("empty", || ask_schema(&smol(), p));
    }
}
#[test]
fn probe_all() {
    let tools = [tool_of(r#"{"type":"object","properties":{"lamp":{"type":"string"}},"required":["lamp"]}"#)];
    let schema = r#"{"type":"object","properties":{"roomy":{"type":"string"}},"required":["roomy"]}"#;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == "jinja")).collect();
    paths.sort();
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        let template = LlamaTemplate::open(&Source { text: &text, bos: "<s>", eos: "</s>", strip_bos: true }, None).unwrap();
        let root = |wanted: &Wanted, tools: &[String]| match template.answer(tools, wanted, false) {
            Ok(a) => match &a.rules.grammar {
                Some(g) => format!("lazy={} roomy={} lamp={} root {}", g.is_lazy, g.text.contains("roomy"), g.text.contains("lamp"), g.text.lines().find(|l| l.starts_with("root ::=")).unwrap()),
                None => "NO GRAMMAR".into(),
            },
            Err(e) => format!("ERR {e}"),
        };
        println!("TPL {name} takes_tools={}", template.takes_tools());
        println!("  required: {}", root(&Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() }, &tools));
        println!("  auto: {}", root(&Wanted::default(), &tools));
        println!("  schema: {}", root(&Wanted { shape: Shape::Schema(schema.into()), ..Wanted::default() }, &[]));
        println!("  schema+auto: {}", root(&Wanted { shape: Shape::Schema(schema.into()), ..Wanted::default() }, &tools));
        println!("  schema+none: {}", root(&Wanted { tool_choice: ToolChoice::None, shape: Shape::Schema(schema.into()), ..Wanted::default() }, &tools));
    }
}
