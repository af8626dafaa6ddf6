//! What llama.cpp would not survive, take for ever for, or leave unbound without a word. A fault here ends the test's process.

use super::*;
use crate::engine::ChatTemplate;
use crate::engine::llama::tests::smollm2;

fn tool(parameters: &str) -> String {
    format!(r#"{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}"#)
}

/// All of llama.cpp's collection, by name; empty where it is not here.
fn collection() -> Vec<(String, LlamaTemplate)> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("models/templates");
    let Ok(files) = std::fs::read_dir(&folder) else {
        eprintln!("skipped: {} is missing, scripts/templates.py fetches it", folder.display());
        return Vec::new();
    };
    let paths = files.map(|file| file.unwrap().path());
    let templates = paths.filter(|path| path.extension().is_some_and(|ending| ending == "jinja")).map(|path| {
        let text = std::fs::read_to_string(&path).unwrap();
        let source = Source { text: &text, bos: "<s>", eos: "</s>", strip_bos: true };
        (path.file_stem().unwrap().to_string_lossy().into_owned(), LlamaTemplate::open(&source, None).unwrap())
    });
    templates.collect()
}

/// What is said of `schema` as the answer's form, and as a tool's parameters.
fn ask(schema: &str) -> [Result<(), String>; 2] {
    let template = &smollm2().template;
    let said = |tools: &[String], wanted: Wanted| {
        template.answer(tools, &wanted, false).map(drop).map_err(|error| error.to_string())
    };
    let form = said(&[], Wanted { shape: Shape::Schema(schema.into()), ..Wanted::default() });
    let harmless = tool(r#"{"type":"object","properties":{}}"#);
    [form, said(&[harmless, tool(schema)], Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() })]
}

/// Refused at both places, for a reason that holds `reason`.
fn refused_for(schema: &str, reason: &str) {
    for (said, place) in
        ask(schema).into_iter().zip(["response_format.json_schema.schema: #", "tools[1].function.parameters: #"])
    {
        let said = said.expect_err(reason);
        assert!(said.starts_with(place) && said.contains(reason), "{said}");
    }
}

fn taken(schema: &str) {
    assert_eq!(ask(schema), [Ok(()), Ok(())], "{schema:.200}");
}

/// Definitions, each of `n_levels` arrays in each other, that refer to the next one.
fn chain(n_definitions: usize, n_levels: usize) -> String {
    let definition = |index: usize| {
        let inner = match index + 1 == n_definitions {
            true => r#"{"type":"null"}"#.to_owned(),
            false => format!(r##"{{"$ref":"#/$defs/d{}"}}"##, index + 1),
        };
        let (open, close) = (r#"{"type":"array","items":"#.repeat(n_levels), "}".repeat(n_levels));
        format!(r#""d{index}":{open}{inner}{close}"#)
    };
    let definitions: Vec<String> = (0..n_definitions).map(definition).collect();
    format!(r##"{{"$ref":"#/$defs/d0","$defs":{{{}}}}}"##, definitions.join(","))
}

#[test]
fn references_that_lead_nowhere_else_are_refused() {
    refused_for(r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}"##, "refers to itself and to nothing else");
    refused_for(
        r##"{"allOf":[{"$ref":"#/$defs/a"}],"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}"##,
        "refers to itself and to nothing else",
    );
    taken(r##"{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"type":"null"}}}"##);
}

#[test]
fn long_ways_and_names_are_refused_and_the_longest_that_are_not_fit_the_stack() {
    taken(&chain(8, 55));
    refused_for(&chain(10, 55), "levels");
    refused_for(&chain(20_000, 1), "schemas in one");
    let named = |name: &str| format!(r#"{{"type":"object","properties":{{"{name}":{{"type":"string"}}}}}}"#);
    taken(&named(&"é".repeat(64)));
    refused_for(&named(&"é".repeat(100_000)), "a name has 200000 bytes");
    let mut nested = named(&"é".repeat(64));
    for _ in 0..14 {
        nested = format!(r#"{{"type":"object","properties":{{"{}":{nested}}}}}"#, "é".repeat(64));
    }
    refused_for(&nested, "names are too long");
}

#[test]
fn what_would_take_for_ever_is_refused() {
    let alternatives = |index: usize| {
        let next = index + 1;
        format!(r##""d{index}":{{"anyOf":[{{"$ref":"#/$defs/d{next}"}},{{"$ref":"#/$defs/d{next}"}}]}}"##)
    };
    let definitions: Vec<String> = (0..40).map(alternatives).collect();
    let spreading = format!(
        r##"{{"type":"object","properties":{{"a":{{"$ref":"#/$defs/d0"}}}},"$defs":{{{},"d40":{{"type":"null"}}}}}}"##,
        definitions.join(",")
    );
    refused_for(&spreading, "too many alternatives");

    let mut typed = String::from(r#"{"type":"string"}"#);
    for _ in 0..20 {
        typed = format!(r#"{{"type":["object","object"],"properties":{{"a":{typed}}}}}"#);
    }
    refused_for(&typed, "schemas in one");

    let properties = |n: usize| {
        let properties: Vec<String> = (0..n).map(|index| format!(r#""p{index}":{{"type":"string"}}"#)).collect();
        format!(r#"{{"type":"object","properties":{{{}}}}}"#, properties.join(","))
    };
    taken(&properties(256));
    refused_for(&properties(257), "257 properties");
    let joined =
        format!(r##"{{"allOf":[{{"$ref":"#/$defs/a"}},{{"$ref":"#/$defs/a"}}],"$defs":{{"a":{}}}}}"##, properties(200));
    refused_for(&joined, "400 properties together");
}

#[test]
fn five_hundred_tools_are_bound() {
    let tools: Vec<String> = (0..500)
        .map(|index| {
            tool(r#"{"type":"object","properties":{"a":{"type":"string"}}}"#).replace("\"f\"", &format!("\"f{index}\""))
        })
        .collect();
    let wanted = Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() };
    let answer = smollm2().template.answer(&tools, &wanted, false).unwrap();
    assert!(answer.rules.grammar.as_ref().unwrap().text.contains("f499"));
}

/// A small model may open brackets for ever.
#[test]
fn an_answer_of_brackets_alone_is_read_or_refused() {
    let calls = [
        ("meta-llama-Llama-3.1-8B-Instruct", r#"{"name": "f", "parameters": {"a": "#),
        ("LFM2-8B-A1B", "<|tool_call_start|>[f(a="),
        ("google-gemma-4-31B-it", "<|tool_call>call:f{a:"),
        ("Qwen3.5-4B", "x</think>\n\n<tool_call>\n<function=f>\n<parameter=a>\n"),
    ];
    let templates = collection();
    let tools = [tool(r#"{"type":"object","properties":{"a":{"type":"array"}}}"#)];
    for (name, start) in calls {
        let Some((_, template)) = templates.iter().find(|(known, _)| known == name) else { continue };
        let reader = template.answer(&tools, &Wanted::default(), false).unwrap().reader;
        for bracket in ["[", "{\"a\": "] {
            let at_most = bracket.repeat(ANSWER_DEPTH_MAX - 2);
            assert!(reader.read(&format!("{start}{at_most}"), false).is_ok(), "{name}");
            assert!(reader.read(&format!("{start}{}", bracket.repeat(100_000)), false).is_err(), "{name}");
        }
    }
}

/// Whatever else is asked for, and whatever llama.cpp knows of the family.
#[test]
fn a_wanted_schema_binds_with_every_template() {
    let schema = r#"{"type":"object","properties":{"chamber":{"type":"string"}},"required":["chamber"]}"#;
    let tools = [tool(r#"{"type":"object","properties":{"a":{"type":"string"}}}"#)];
    for (name, template) in collection() {
        for (tools, tool_choice) in
            [(&[][..], ToolChoice::Auto), (&tools[..], ToolChoice::Auto), (&tools[..], ToolChoice::None)]
        {
            let wanted = Wanted { tool_choice, shape: Shape::Schema(schema.into()), ..Wanted::default() };
            // Its template takes translations only.
            let Ok(answer) = template.answer(tools, &wanted, false) else {
                assert_eq!(name, "google-translategemma-4b-it");
                continue;
            };
            let grammar = answer.rules.grammar.as_ref().unwrap();
            assert!(!grammar.is_lazy && grammar.text.contains("chamber"), "{name}: {}", grammar.text);
        }
    }
}

#[test]
fn a_schema_without_keywords_still_binds_to_json() {
    let wanted = Wanted { shape: Shape::Schema("{}".into()), ..Wanted::default() };
    let answer = smollm2().template.answer(&[], &wanted, false).unwrap();
    assert!(!answer.rules.grammar.as_ref().unwrap().is_lazy);
}

/// Not even where a family talks between thinking and calling.
#[test]
fn no_template_talks_before_a_demanded_call() {
    let tools = [tool(r#"{"type":"object","properties":{"a":{"type":"string"}}}"#)];
    let wanted = Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() };
    for (name, template) in collection() {
        let Ok(answer) = template.answer(&tools, &wanted, false) else {
            assert_eq!(name, "google-translategemma-4b-it");
            continue;
        };
        let text = &answer.rules.grammar.as_ref().unwrap().text;
        let root = text.lines().find_map(|line| line.strip_prefix("root ::= ")).unwrap();
        assert!(!root.contains(")? until-") && !root.starts_with("until-"), "{name}: {root}");
        assert!(!text.contains("any ::= preamble"), "{name}");
    }
}
