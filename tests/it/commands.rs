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
        let error = planned("total") / all - 1.0;
        eprintln!("{name}: planned {:.1} MiB, llama.cpp took {all:.1} MiB: {:+.2} %", planned("total"), 100.0 * error);
        assert!(error.abs() < 0.05, "{name}: planned {} MiB in all, llama.cpp took {all}", planned("total"));
    }
}
