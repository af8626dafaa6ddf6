//! The binary as it is called: exit codes, one clear line on stderr, nothing written by a start that is refused.

use assert_cmd::Command;
use tempfile::TempDir;

/// A folder with a configuration; what hob writes by itself goes to `state/` in it.
struct Place {
    folder: TempDir,
}

impl Place {
    fn with(config: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.toml"), config).unwrap();
        Place { folder }
    }

    fn hob(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hob"));
        command.args(arguments).arg("--config").arg(self.folder.path().join("config.toml"));
        command.env("STATE_DIRECTORY", self.folder.path().join("state")).env_remove("HOB_LOG");
        command
    }

    /// Runs a command that must fail; gives its exit code and its one line, with `HOME` for the folder.
    fn refusal(&self, arguments: &[&str]) -> (i32, String) {
        let output = self.hob(arguments).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(stderr.lines().count(), 1, "{arguments:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        self.is_left_alone();
        (output.status.code().unwrap(), stderr.trim_end().replace(&self.folder.path().display().to_string(), "HOME"))
    }

    fn is_left_alone(&self) {
        assert!(!self.folder.path().join("state").exists(), "a refused start writes nothing");
    }
}

#[test]
fn an_unknown_key_is_told_with_the_one_that_was_meant() {
    let place = Place::with("model.contxt = 4096");
    let expected = "hob: HOME/config.toml: model.contxt: unknown key; did you mean model.context?";
    for command in ["serve", "plan", "chat"] {
        assert_eq!(place.refusal(&[command]), (78, expected.to_owned()), "{command}");
    }
    let output = place.hob(&["check"]).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    assert!(String::from_utf8(output.stdout).unwrap().contains("did you mean"), "check reports to stdout");
}

#[test]
fn a_daemon_that_is_not_there_is_one_line() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let place = Place::with(&format!("server.listen = [\"127.0.0.1:{port}\"]"));
    let (code, line) = place.refusal(&["chat"]);
    assert_eq!((code, line.contains("start one with `hob serve`")), (1, true), "{line}");
    let (code, line) = Place::with("server.listen = [\"unix:hob.sock\"]").refusal(&["chat"]);
    assert_eq!((code, line.contains("--url")), (1, true), "{line}");
}

/// A body in the folder, with this system text and these tools.
fn body(place: &Place, name: &str, system: &str, tools: &[&str]) -> String {
    let tools: Vec<serde_json::Value> = tools
        .iter()
        .map(|tool| serde_json::json!({ "type": "function", "function": { "name": tool, "description": "Does it." } }))
        .collect();
    let messages = serde_json::json!([{ "role": "system", "content": system }, { "role": "user", "content": "On?" }]);
    let body = serde_json::json!({ "model": "house", "messages": messages, "tools": tools });
    let path = place.folder.path().join(name);
    std::fs::write(&path, body.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn lint_names_what_would_break_reuse_and_ci_can_act_on_it() {
    const RULES: &str = "You are the voice of this house and answer briefly.\nUse the tools that you are given.";
    let place = Place::with("");
    let clean = body(&place, "clean.json", RULES, &["light", "bin"]);
    let clocked = body(&place, "clocked.json", &format!("It is 20:06.\n{RULES}"), &["bin", "light"]);
    let run = |arguments: &[&str]| {
        let output = place.hob(arguments).output().unwrap();
        let text =
            |bytes| String::from_utf8(bytes).unwrap().replace(&place.folder.path().display().to_string(), "HOME");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, stdout, stderr) = run(&["lint", &clean]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("not looked at: the chat template: ") && stdout.contains("nothing found"), "{stdout}");
    let (code, stdout, stderr) = run(&["lint", &clean, &clocked]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""));
    let findings = stdout.split("not looked at").next().unwrap();
    insta::assert_snapshot!(findings, @"
    HOME/clocked.json: messages[0], line 1, byte 0: the time or the date, another one in each request; 228 bytes of system text and tools stand behind it
        It is 20:06.
    HOME/clocked.json: the same tools in another order than in HOME/clean.json; 142 bytes of system text and tools stand behind it
        bin, light
        before: light, bin
    ");
    let (code, stdout, _) = run(&["lint", &clean, &clocked, "--json"]);
    let mut json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, json["skipped"].as_array().unwrap().len()), (Some(1), 1));
    insta::assert_snapshot!(serde_json::to_string_pretty(&json["findings"].take()).unwrap(), @r#"
    [
      {
        "kind": "clock",
        "file": "HOME/clocked.json",
        "message": 0,
        "line": 1,
        "byte": 0,
        "tool": null,
        "than": null,
        "text": "It is 20:06.",
        "before": null,
        "bytes_behind": 228
      },
      {
        "kind": "tool_order",
        "file": "HOME/clocked.json",
        "message": null,
        "line": null,
        "byte": null,
        "tool": null,
        "than": "HOME/clean.json",
        "text": "bin, light",
        "before": "light, bin",
        "bytes_behind": 142
      }
    ]
    "#);
    place.is_left_alone();
}

#[test]
fn lint_looks_at_a_configured_template_and_works_without_any_configuration() {
    let place = Place::with("model.chat_template = \"chat.jinja\"");
    std::fs::write(place.folder.path().join("chat.jinja"), "{{ strftime_now('%d %b %Y') }}{{ messages[0].content }}")
        .unwrap();
    let clean = body(&place, "clean.json", "Be kind.", &[]);
    let output = place.hob(&["lint", &clean, "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["findings"][0]["kind"]), (Some(1), &"template_date".into()), "{report}");

    let nowhere = place.folder.path().join("nowhere");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hob"));
    command.args(["lint", &clean]).env("HOME", &nowhere).env("XDG_CONFIG_HOME", &nowhere).env_remove("HOB_CONFIG");
    let output = command.output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{stdout}");
    assert!(stdout.contains("not looked at: the chat template: no configuration found"), "{stdout}");
}

#[test]
fn a_body_that_cannot_be_read_is_a_line_and_not_a_finding() {
    let place = Place::with("");
    for (name, bytes, expected) in [
        ("gone.json", None, "hob: HOME/gone.json: cannot be read: No such file or directory"),
        (
            "text.json",
            Some("no body"),
            "hob: HOME/text.json: is no body of a chat completion: the body is not valid JSON",
        ),
        ("empty.json", Some("{}"), "hob: HOME/empty.json: is no body of a chat completion: model: is required"),
    ] {
        let path = place.folder.path().join(name);
        if let Some(bytes) = bytes {
            std::fs::write(&path, bytes).unwrap();
        }
        let (code, line) = place.refusal(&["lint", &path.display().to_string()]);
        assert_eq!(code, 2);
        assert!(line.starts_with(expected), "{line}");
    }
    let (code, line) = Place::with("model.contxt = 4096").refusal(&["lint", "x.json"]);
    assert_eq!((code, line.contains("did you mean model.context?")), (78, true), "{line}");
}

#[test]
fn why_reads_what_a_daemon_that_is_off_has_left() {
    let place = Place::with("telemetry.path = \"hob.sqlite\"\nserver.listen = [\"unix:hob.sock\"]");
    let (code, line) = place.refusal(&["why"]);
    assert_eq!((code, line.starts_with("hob: no telemetry database at HOME/hob.sqlite")), (1, true), "{line}");

    let path = place.folder.path().join("hob.sqlite");
    let store = hob::telemetry::Store::open(&path, 1, std::time::Duration::from_secs(60)).unwrap();
    let (handle, inbox) = hob::telemetry::inbox();
    for (id, cause) in [("first", "cold"), ("second", "appended")] {
        let plan = hob::telemetry::PlanRecord { layout: "safe".into(), ..Default::default() };
        let label =
            hob::telemetry::Label { id: id.into(), plan: Some(std::sync::Arc::new(plan)), ..Default::default() };
        handle.record(hob::telemetry::Record::Request(hob::telemetry::RequestRecord {
            label,
            n_prompt: 100,
            n_reused_cells: 90,
            n_reused_ram: 0,
            n_reused_disk: 0,
            n_computed: 10,
            n_generated: 1,
            n_drafted: 0,
            n_accepted: 0,
            queue: Default::default(),
            ttft: None,
            prefill: Default::default(),
            decode: Default::default(),
            finish: "stop",
            cause,
            miss_at: 90,
        }));
    }
    handle.stop();
    store.run(inbox);
    for (arguments, id, cause) in [
        (&["why", "--json"][..], "second", "appended"),
        (&["why", "last", "--json"], "second", "appended"),
        (&["why", "first", "--json"], "first", "cold"),
    ] {
        let output = place.hob(arguments).output().unwrap();
        let account: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0));
        assert_eq!((account["id"].as_str(), account["cause"].as_str()), (Some(id), Some(cause)));
    }
    let (code, line) = place.refusal(&["why", "third"]);
    assert_eq!(code, 1);
    assert_eq!(line, "hob: no request third is remembered; its id is what x-request-id says");
}

#[cfg(feature = "llama")]
mod with_models {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;
    use std::path::Path;
    use std::process::Stdio;

    use serde_json::Value;

    use super::Place;
    use crate::models;

    impl Place {
        fn file(self, name: &str, bytes: impl AsRef<[u8]>) -> Place {
            std::fs::write(self.folder.path().join(name), bytes).unwrap();
            self
        }
    }

    #[test]
    fn a_missing_model_is_one_line() {
        let place = Place::with("server.listen = [\"127.0.0.1:0\"]");
        for command in ["serve", "plan"] {
            let (code, line) = place.refusal(&[command]);
            assert_eq!(code, 1);
            assert!(line.starts_with("hob: model HOME/model.gguf: cannot be opened: No such file"), "{line}");
        }
    }

    #[test]
    fn a_corrupt_model_is_one_line() {
        let model = std::fs::read(models::smollm2()).unwrap();
        let cases: [(&str, &[u8], &str); 4] = [
            ("a text", b"<!DOCTYPE html>", "is not a GGUF file"),
            ("cut in its header", &model[..1 << 20], "is cut off"),
            ("cut in the middle", &model[..model.len() / 2], "is cut off"),
            ("cut at the end", &model[..model.len() - 100], "not within the file bounds"),
        ];
        for (what, bytes, expected) in cases {
            let place = Place::with("server.listen = [\"127.0.0.1:0\"]").file("model.gguf", bytes);
            for command in ["serve", "plan"] {
                let (code, line) = place.refusal(&[command]);
                assert_eq!(code, 1, "{what}");
                assert!(line.starts_with("hob: model HOME/model.gguf: ") && line.contains(expected), "{what}: {line}");
            }
            let output = place.hob(&["check"]).output().unwrap();
            let report = String::from_utf8(output.stdout).unwrap();
            assert_eq!((output.status.code(), report.lines().count()), (Some(78), 1), "{what}: {report}");
            assert!(report.contains("model.path"), "{what}: {report}");
            assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{what}");
            place.is_left_alone();
        }
    }

    #[test]
    fn a_missing_document_is_one_line() {
        let place = Place::with("[[profile]]\nname = \"house\"\ndocuments = [\"handbook.md\"]");
        for command in ["serve", "plan"] {
            let (code, line) = place.refusal(&[command]);
            assert_eq!(code, 78);
            assert!(line.contains("profile[0].documents = \"handbook.md\": no file has such a name"), "{line}");
        }
    }

    #[test]
    fn a_port_in_use_is_one_line() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let (code, line) = Place::with(&format!("server.listen = [\"{address}\"]")).refusal(&["serve"]);
        assert_eq!(code, 1);
        assert_eq!(
            line,
            format!("hob: {address} is in use by another program: stop that one, or change server.listen")
        );
    }

    /// A house with a policy of many tokens on the demo model.
    fn house(context: usize, model: &Path) -> Place {
        let config = format!(
            "server.listen = [\"127.0.0.1:0\"]\n[model]\npath = {model:?}\ncontext = {context}\n\
             [[profile]]\nname = \"house\"\nsystem = \"house.md\""
        );
        Place::with(&config).file("house.md", "The lamp is off. ".repeat(200))
    }

    #[test]
    fn pins_that_do_not_fit_refuse_the_start_as_planned() {
        let place = house(1024, &models::smollm2());
        let output = place.hob(&["plan", "--json"]).output().unwrap();
        assert_eq!(output.status.code(), Some(78));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let missing = plan["misfits"][0]["missing_tokens"].as_u64().unwrap();

        let output = place.hob(&["check"]).output().unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(78));
        assert!(report.contains("model.context = 1024: the profiles need"), "{report}");

        let output = place.hob(&["serve"]).env("HOB_LOG", "warn").output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(78), 1), "{line}");
        assert!(line.contains(&format!("{missing} too few")), "{line}");
        place.is_left_alone();

        let needed = plan["misfits"][0]["remedies"][0].as_str().unwrap().strip_prefix("model.context = ").unwrap();
        let place = house(needed.parse().unwrap(), &models::smollm2());
        assert_eq!(place.hob(&["plan"]).output().unwrap().status.code(), Some(0));
    }

    #[test]
    fn a_context_beyond_the_trained_one_is_warned() {
        let place = house(16_384, &models::smollm2());
        for command in ["plan", "check"] {
            let output = place.hob(&[command]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert_eq!(output.status.code(), Some(0), "{text}");
            assert!(text.contains("warning: ") && text.contains("was trained for 8,192 tokens"), "{text}");
        }
    }

    #[test]
    fn a_stored_request_is_planned_without_a_model_run() {
        let config = format!("[model]\npath = {:?}\nname = \"house\"\n[layout]\nmode = \"safe\"", models::smollm2());
        let place = Place::with(&config);
        let body = super::body(&place, "body.json", "It is 20:06.\nYou are the voice of this house.", &["light"]);
        let output = place.hob(&["plan", "--request", &body, "--json"]).output().unwrap();
        let plan: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
        assert_eq!((output.status.code(), &plan["layout"]), (Some(0), &"safe".into()));
        let parts = plan["parts"].as_array().unwrap();
        let n_tokens: u64 = parts.iter().map(|part| part["n_tokens"].as_u64().unwrap()).sum();
        assert_eq!(n_tokens, plan["n_tokens"].as_u64().unwrap());
        let [moved] = &plan["moved"].as_array().unwrap()[..] else { panic!("the clock moves: {plan}") };
        assert_eq!((&moved["kind"], &moved["text"]), (&"clock".into(), &"It is 20:06.".into()));
        assert!(parts.iter().any(|part| part["section"] == "live" && part["text"].as_str().unwrap().contains("20:06")));
        place.is_left_alone();

        let output = place.hob(&["lint", &body]).output().unwrap();
        let report = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(report.contains("the time or the date") && !report.contains("not looked at"), "{report}");
    }

    #[test]
    fn the_plan_agrees_with_what_llama_cpp_allocates() {
        for (context, kv_type) in [(8192, "f16"), (1000, "q8_0")] {
            agrees(&models::smollm2(), context, kv_type);
        }
    }

    #[test]
    fn models_of_other_kinds_are_planned_as_well() {
        for model in [models::gemma(), models::qwen()].into_iter().flatten() {
            agrees(&model, 4096, "f16");
        }
    }

    /// Compares `hob plan` with llama.cpp's own log while `hob serve` starts: K/V exactly to the log's two digits, all
    /// together within 5 %.
    fn agrees(model: &Path, context: usize, kv_type: &str) {
        let config = format!(
            "server.listen = [\"127.0.0.1:0\"]\n[model]\npath = {model:?}\ncontext = {context}\ngpu = \"off\"\n\
             kv_type = \"{kv_type}\"\nchat_template = \"chat.jinja\""
        );
        let place = Place::with(&config).file("chat.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
        let output = place.hob(&["plan", "--json"]).output().unwrap();
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        let planned = |name: &str| plan["memory"][name].as_f64().unwrap() / f64::from(1 << 20);

        let mut daemon = std::process::Command::new(env!("CARGO_BIN_EXE_hob"))
            .args(["serve", "--config"])
            .arg(place.folder.path().join("config.toml"))
            .env("STATE_DIRECTORY", place.folder.path().join("state"))
            .env("HOB_LOG", "warn,hob=info,llama=debug")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut kv, mut all) = (0.0, 0.0);
        for line in BufReader::new(daemon.stderr.take().unwrap()).lines().map_while(Result::ok) {
            // "…: CPU KV buffer size = 180.00 MiB"
            if let Some((what, size)) = line.split_once("buffer size =") {
                let size: f64 = size.trim().trim_end_matches(" MiB").parse().unwrap();
                kv += if what.contains(" KV ") { size } else { 0.0 };
                // Repacked weights are copied out of the file's pages, which then lie unused.
                all += if what.contains("REPACK") { 0.0 } else { size };
            }
            if line.contains("context opened") {
                break;
            }
        }
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        let name = model.display();
        assert!(
            kv > 0.0 && (planned("kv") - kv).abs() < 0.02,
            "{name}: planned {} MiB of K/V, got {kv}",
            planned("kv")
        );
        // What leaves the cells is kept by hob itself.
        let of_engine = planned("total") - planned("cache_ram");
        let error = of_engine / all - 1.0;
        eprintln!("{name}: planned {of_engine:.1} MiB, llama.cpp took {all:.1} MiB: {:+.2} %", 100.0 * error);
        assert!(error.abs() < 0.05, "{name}: planned {of_engine} MiB in all, llama.cpp took {all}");
    }
}
