//! Rendered prompts: where each section lands, and where cuts are.

use super::*;

#[test]
fn a_prompt_without_a_profile_stays_as_the_client_wrote_it() {
    let messages = [system("You help."), user("Hi"), assistant("Hello."), user("Lights on")];
    let planned = plan(Style::ToolsAfter, request("model", &messages, &[LIGHT]));
    insta::assert_snapshot!(show(&planned), @r#"
    ⟦<|im_start|>⟧system
    You help.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Hi⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Hello.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    Lights on⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Session client system: 9
    Fixed tools: 79 ✂
    Turn history: 8
    Turn question: 9
    "#);
}

#[test]
fn documents_stand_in_the_system_text_where_no_tools_come_after_it() {
    let messages = [user("Where is the key?")];
    insta::assert_snapshot!(show(&plan(Style::ToolsBefore, request("house", &messages, &[]))), @r#"
    ⟦<|im_start|>⟧tools
    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧system
    Be kind.

    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Where is the key?⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed tools: 79
    Fixed policy: 8
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn question: 17
    "#);
}

#[test]
fn documents_are_a_first_exchange_where_tools_come_after_the_system_text() {
    let messages = [user("Where is the key?")];
    insta::assert_snapshot!(show(&plan(Style::ToolsAfter, request("house", &messages, &[]))), @r#"
    ⟦<|im_start|>⟧system
    Be kind.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Where is the key?⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed policy: 8
    Fixed tools: 79 ✂
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn question: 17
    "#);
}

#[test]
fn documents_are_a_first_exchange_where_nothing_ends_the_system_text() {
    let messages = [user("Where is the key?")];
    insta::assert_snapshot!(show(&plan(Style::Shared, request("house", &messages, &[]))), @r#"
    ⟦<start_of_turn>⟧user
    Be kind.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>

    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<end_of_turn>⟧
    ⟦<start_of_turn>⟧model
    Noted.⟦<end_of_turn>⟧
    ⟦<start_of_turn>⟧✂user
    Where is the key?⟦<end_of_turn>⟧
    ⟦<start_of_turn>⟧model
    ---
    Fixed policy: 8
    Fixed tools: 79
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn question: 17
    "#);
}

#[test]
fn the_clients_system_text_follows_the_profiles_head() {
    let messages = [system("Answer in verse."), user("Hi")];
    insta::assert_snapshot!(show(&plan(Style::ToolsAfter, request("house", &messages, &[]))), @r#"
    ⟦<|im_start|>⟧system
    Be kind.

    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Answer in verse.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Hi⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed policy: 8
    Fixed tools: 79 ✂
    Document document handbook: 65
    Document document bins: 50 ✂
    Session client system: 16 ✂
    Turn question: 2
    "#);
}

#[test]
fn the_clients_system_text_joins_the_policy_when_it_brings_tools() {
    let messages = [system("Answer in verse."), user("Hi")];
    insta::assert_snapshot!(show(&plan(Style::ToolsAfter, request("house", &messages, &[CLOCK]))), @r#"
    ⟦<|im_start|>⟧system
    Be kind.

    Answer in verse.

    <tools>
    {"type":"function","function":{"name":"clock"}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Hi⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed policy: 8
    Session client system: 16
    Fixed tools: 51 ✂
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn question: 2
    "#);
}

#[test]
fn a_system_message_in_mid_conversation_stays_there() {
    let messages = [user("Hi"), assistant("Hello."), system("It is late."), user("Good night")];
    insta::assert_snapshot!(show(&plan(Style::ToolsBefore, request("house", &messages, &[]))), @r#"
    ⟦<|im_start|>⟧tools
    <tools>
    {"type":"function","function":{"name":"light","description":"Switches."}}
    </tools>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧system
    Be kind.

    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    Hi⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Hello.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧system
    It is late.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    Good night⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed tools: 79
    Fixed policy: 8
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn history: 19
    Turn question: 10
    "#);
}

#[test]
fn the_fallback_writes_tools_calls_and_results_as_text() {
    let calls = Message {
        content: "Both.".into(),
        tool_calls: vec![call("light", r#"{"b": 1,  "a": 2}"#), call("clock", "{}")],
        ..Message::text(Role::Assistant, "")
    };
    let messages =
        [tool("left over"), user("Do both"), calls, tool("on"), tool("12:00"), assistant("Done."), user("Thanks")];
    insta::assert_snapshot!(show(&plan(Style::Plain, request("house", &messages, &[]))), @r#"
    ⟦<|im_start|>⟧system
    Be kind.

    # Tools

    You can call these functions, each described by one line of JSON:
    <tools>
    {"type": "function", "function": {"name": "light", "description": "Switches."}}
    </tools>

    To call a function, answer with its name and arguments as JSON inside <tool_call> tags, one block for each call:
    <tool_call>
    {"name": "the function's name", "arguments": {"parameter": "value"}}
    </tool_call>
    What it returned comes back inside <tool_response> tags.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    These are the household's documents. Rely on them where they answer a question.

    <document title="handbook">
    The key is under the mat.
    </document>

    <document title="bins">
    Paper: Monday.
    </document>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Noted.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    <tool_response>
    left over
    </tool_response>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    Do both⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Both.
    <tool_call>
    {"name": "light", "arguments": {"b": 1,  "a": 2}}
    </tool_call>
    <tool_call>
    {"name": "clock", "arguments": {}}
    </tool_call>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    <tool_response>
    on
    </tool_response>
    <tool_response>
    12:00
    </tool_response>⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    Done.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    Thanks⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Fixed policy: 8
    Fixed tools: 436 ✂
    Document document handbook: 65
    Document document bins: 50 ✂
    Turn history: 62
    Turn question: 6
    "#);
}

#[test]
fn the_fallback_gives_a_client_without_system_text_one_for_its_tools() {
    let planned = plan(Style::Plain, request("model", &[user("Hi")], &[CLOCK]));
    let shown = show(&planned);
    assert!(shown.contains("⟦<|im_start|>⟧system\n# Tools\n"), "{shown}");
    assert!(shown.contains(&format!("<tools>\n{CLOCK}\n</tools>")), "{shown}");
    assert_eq!(planned.prompt.cuts.len(), 1);
}

#[test]
fn a_strict_template_takes_the_exchanges() {
    for style in [Style::Plain, Style::ToolsAfter, Style::ToolsBefore, Style::Shared] {
        let mut planner = planner(Bytes::new(), Template::strict(style), vec![house()]);
        let messages = [system("Be brief."), user("Hi"), assistant("Hello."), user("Bye")];
        planner.plan(&request("house", &messages, &[]), &NOW).unwrap();
        planner.pins().unwrap();
    }
}

#[test]
fn a_profile_without_anything_leaves_the_clients_system_text_where_it_is() {
    let empty = Profile { system: String::new(), tools: vec![], documents: vec![], ..house() };
    let mut planner = planner(Bytes::new(), Template::new(Style::ToolsAfter), vec![empty]);
    let messages = [system("You help."), user("Hi")];
    let by_profile = planner.plan(&request("house", &messages, &[]), &NOW).unwrap().prompt;
    assert_eq!(by_profile, planner.plan(&request("model", &messages, &[]), &NOW).unwrap().prompt);
    assert_eq!(planner.pins().unwrap(), []);
}

#[test]
fn a_head_that_shares_a_turn_with_the_question_has_no_cut() {
    let profile = Profile { documents: vec![], ..house() };
    let mut planner = planner(Bytes::new(), Template::new(Style::Shared), vec![profile]);
    assert_eq!(planner.pins().unwrap(), []);
    assert!(planner.plan(&request("house", &[user("Hi")], &[]), &NOW).unwrap().prompt.cuts.is_empty());
}
