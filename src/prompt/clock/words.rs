//! The words of clocks in English, German, Polish, Romanian, Russian, Spanish and French.
//!
//! A *cue* is a phrase that says that the time or day of now follows. Cues and words are compared folded: small
//! letters without accents; in cues also without what stands between their words, so that `Current time`,
//! `current_time` and `currentTime` are one. This file knows no grammar.

use std::sync::LazyLock;

/// What a phrase announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cue {
    /// The time or date of now.
    Now,
    /// The date of now; a time behind it alone might be an appointment.
    Today,
    /// A time or date of something, `Time:`; now's only if the value says so.
    Label,
    /// A point in time: a count of seconds, or date and time.
    Stamp,
    /// Words in front of a cue.
    Aside,
    /// A per-request id.
    Nonce,
}

/// What a word is inside a date or time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// 0 is Monday.
    Weekday(u8),
    Month(u8),
    /// `mar` is March in English, and Tuesday in Spanish.
    MonthOrWeekday(u8, u8),
    /// Says that a time follows, even one written `15.09`.
    Hour,
    HourUnit,
    MinuteUnit,
    SecondUnit,
    Am,
    Pm,
    Utc,
    /// `time zone` behind a value; before one it says that none of now's follows.
    Zone,
    /// First part of a zone name such as `Europe/Berlin`.
    Continent,
    /// `in Berlin`, but also Russian and French `at 15:09`.
    In,
    Filler,
}

/// The longest cue at byte `from`, and where it ends.
pub(super) fn cue(text: &str, from: usize) -> Option<(usize, Cue)> {
    let mut joined = Folded::default();
    let mut longest = None;
    for (at, c) in text[from..].char_indices().chain([(text.len() - from, '.')]) {
        if c.is_alphabetic() || is_accent(c) {
            joined.push(c);
        } else if c != '\'' && c != '’' {
            let key = joined.as_bytes();
            let Some((phrase, cue)) = CUES.first_from(key).filter(|(phrase, _)| phrase.as_bytes().starts_with(key))
            else {
                return longest;
            };
            if phrase.len() == key.len() {
                longest = Some((from + at, *cue));
            }
            if !(matches!(c, ' ' | '\u{a0}' | '_' | '-' | '&' | '/')) {
                return longest;
            }
        }
    }
    longest
}

/// The word at byte `from` with its meaning, and where it ends.
pub(super) fn word(text: &str, from: usize) -> Option<(usize, Word)> {
    let end = word_end(text, from);
    let mut folded = Folded::default();
    text[from..end].chars().for_each(|c| folded.push(c));
    let (known, word) = WORDS.first_from(folded.as_bytes())?;
    (known.as_bytes() == folded.as_bytes()).then_some((end, *word))
}

pub(super) fn word_end(text: &str, from: usize) -> usize {
    text[from..].find(|c: char| !c.is_alphabetic() && !is_accent(c)).map_or(text.len(), |len| from + len)
}

fn is_accent(c: char) -> bool {
    ('\u{300}'..='\u{36f}').contains(&c)
}

/// A folded phrase. Longer ones than any in the lists end in a byte that is in none.
struct Folded {
    bytes: [u8; 64],
    len: usize,
}

impl Default for Folded {
    fn default() -> Folded {
        Folded { bytes: [0; 64], len: 0 }
    }
}

impl Folded {
    fn push(&mut self, c: char) {
        let Some(c) = fold(c) else { return };
        if self.len + c.len_utf8() < self.bytes.len() {
            self.len += c.encode_utf8(&mut self.bytes[self.len..]).len();
        } else if self.len < self.bytes.len() {
            self.bytes[self.len..].fill(0x7f);
            self.len = self.bytes.len();
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn fold(c: char) -> Option<char> {
    if c.is_ascii() {
        return Some(c.to_ascii_lowercase());
    }
    let c = c.to_lowercase().next()?;
    Some(match c {
        'à'..='å' | 'ă' | 'ą' => 'a',
        'ç' | 'ć' => 'c',
        'è'..='ë' | 'ę' => 'e',
        'ì'..='ï' => 'i',
        'ł' => 'l',
        'ñ' | 'ń' => 'n',
        'ò'..='ö' => 'o',
        'ś' | 'ș' | 'ş' | 'ß' => 's',
        'ț' | 'ţ' => 't',
        'ù'..='ü' => 'u',
        'ź' | 'ż' => 'z',
        // Decomposed, it loses its mark below.
        'й' => 'и',
        c if is_accent(c) => return None,
        c => c,
    })
}

static CUES: LazyLock<Lexicon<Cue>> = LazyLock::new(|| {
    let lists = [
        (Cue::Now, NOW),
        (Cue::Today, TODAY),
        (Cue::Label, LABELS),
        (Cue::Stamp, STAMPS),
        (Cue::Aside, ASIDES),
        (Cue::Nonce, NONCES),
    ];
    let phrases = lists.into_iter().flat_map(|(cue, list)| list.split(',').map(move |phrase| (phrase, cue)));
    Lexicon::new(phrases.map(|(phrase, cue)| (phrase.chars().filter(|c| c.is_alphabetic()).collect::<String>(), cue)))
});

static WORDS: LazyLock<Lexicon<Word>> = LazyLock::new(|| {
    let numbered = |lists: [&'static str; 12], word: fn(u8) -> Word| {
        let lists = lists.into_iter().enumerate();
        lists.flat_map(move |(n, list)| list.split_whitespace().map(move |text| (text, word(n as u8))))
    };
    let other = [
        (Word::MonthOrWeekday(2, 1), "mar"),
        (Word::Hour, "godz godzina godzinie godzinę ora orele hora heure час time uhrzeit время czas"),
        (Word::HourUnit, "h uhr heures horas часов часа ч hrs"),
        (Word::MinuteUnit, "min minutes minuten minut minuty minute minutos минут минуты минута мин m"),
        (Word::SecondUnit, "s sec seconds sekunden sekund sekundy secunde segundos secondes секунд секунды сек"),
        (Word::Am, "am"),
        (Word::Pm, "pm"),
        (Word::Utc, "utc gmt z"),
        (Word::Zone, "timezone zone tz zeitzone strefa czasowa fus orar часовой пояс zona horaria fuseau horaire"),
        (Word::Continent, "africa america antarctica asia atlantic australia europe indian pacific etc us"),
        (Word::In, "in im w we în în в во en à"),
        (Word::Filler, FILLERS),
    ];
    let other = other.into_iter().flat_map(|(word, list)| list.split_whitespace().map(move |text| (text, word)));
    let weekdays = numbered(WEEKDAYS, Word::Weekday);
    Lexicon::new(
        weekdays.chain(numbered(MONTHS, |n| Word::Month(n + 1))).chain(other).map(|(text, word)| (text.into(), word)),
    )
});

/// Folded texts with their meanings, in order. Most words of most lines end at their first letter's empty range.
struct Lexicon<T> {
    entries: Vec<(String, T)>,
    /// Where the texts begin whose first byte is the index, and, behind the last, where they end.
    starts: [usize; 257],
}

impl<T> Lexicon<T> {
    /// Of equal texts the first given stays.
    fn new(entries: impl Iterator<Item = (String, T)>) -> Lexicon<T> {
        let fold_all = |text: String| text.chars().filter_map(fold).collect::<String>();
        let mut entries: Vec<_> = entries.map(|(text, meaning)| (fold_all(text), meaning)).collect();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|(a, _), (b, _)| a == b);
        let first = |text: &str| text.bytes().next().map_or(0, usize::from);
        let starts = std::array::from_fn(|byte| entries.partition_point(|(text, _)| first(text) < byte));
        Lexicon { entries, starts }
    }

    /// The first entry that begins like `key` and is not less.
    fn first_from(&self, key: &[u8]) -> Option<&(String, T)> {
        let first = usize::from(*key.first()?);
        let range = &self.entries[self.starts[first]..self.starts[first + 1]];
        range.get(range.partition_point(|(text, _)| text.as_bytes() < key))
    }
}

const NOW: &str = "current time, current date, current date and time, current time and date, current datetime,
    current day, current weekday, current day of the week, current local time, current local date,
    current local date and time, current local datetime, current system time, current moment, current UTC time,
    current UTC date, current UTC datetime, current UTC date and time, UTC time, UTC now, local time, local date,
    local datetime, local date and time, system time, system date, server time, user time, user local time,
    user's time, user's local time, user's current time, user's date, user's current date, your current time,
    your local time, present time, present date, actual time, time is, time now, time now is, time is now, date is,
    date now, day is, datetime is, datetime now, date and time is, date and time are, date and time now,
    it is, it is now, it is currently, it's, it's now, it's currently, it is today, right now, right now it is,
    now, now it is, currently, currently it is, it is presently, at the moment it is, date today, time right now,
    time of this request, request time,
    aktuelle Uhrzeit, aktuelle Zeit, aktuelles Datum, aktuelle Datum, aktuelles Datum und Uhrzeit,
    aktuelle Datum und Uhrzeit, aktuelle Datum und die Uhrzeit, aktuelles Datum und aktuelle Uhrzeit,
    aktuelle Uhrzeit und Datum, aktueller Zeitpunkt, aktueller Tag, aktueller Wochentag, aktuelle Ortszeit,
    aktuelle lokale Zeit, Ortszeit, lokale Zeit, Systemzeit, Serverzeit, derzeitige Uhrzeit, derzeitiges Datum,
    jetzige Uhrzeit, jetzige Zeit, gegenwärtige Zeit, Uhrzeit ist, Zeit ist, Datum ist, Uhrzeit jetzt,
    es ist, es ist jetzt, es ist gerade, es ist aktuell, es ist derzeit, es ist nun, jetzt ist es, jetzt, gerade ist es,
    aktuell ist es, derzeit ist es, momentan ist es, wir haben, wir haben jetzt, wir haben es, wir haben es jetzt,
    aktualny czas, aktualna godzina, aktualna data, aktualna data i godzina, aktualna data i czas, aktualny dzień,
    aktualny dzień tygodnia, aktualna data oraz godzina, bieżący czas, bieżąca godzina, bieżąca data,
    bieżąca data i godzina, bieżąca data i czas, obecny czas, obecna godzina, obecna data, obecna data i godzina,
    czas lokalny, lokalny czas, czas systemowy, czas to, godzina to, data to, jest, jest teraz, jest godzina,
    jest obecnie, teraz jest, teraz jest godzina, teraz, obecnie jest, obecnie jest godzina, aktualnie jest,
    aktualnie jest godzina, mamy, mamy teraz, mamy godzinę,
    ora curentă, ora actuală, data curentă, data actuală, data și ora curentă, data și ora curente,
    data și ora actuală, data și ora actuale, data curentă și ora, data curentă și ora curentă, ziua curentă,
    timpul curent, ora locală, ora exactă, ora este, data este, este ora, e ora, acum este, acum este ora, acum e,
    acum e ora, este acum, este acum ora, acum, în prezent este, în prezent este ora, momentan este ora, suntem în,
    suntem pe,
    текущее время, текущая дата, текущие дата и время, текущая дата и время, текущая дата и текущее время,
    текущее время и дата, текущий день, текущий день недели, местное время, текущее местное время, системное время,
    время сейчас, сейчас время, сейчас, на часах, сейчас на часах, в данный момент, настоящее время, точное время,
    время сервера,
    hora actual, fecha actual, fecha y hora actual, fecha y hora actuales, fecha actual y hora,
    fecha y la hora actual, fecha y la hora actuales, fecha actual y hora actual,
    día actual, hora local, hora local actual, hora del sistema, hora es, fecha es, es la, es las, son las, son,
    ahora son las, ahora es la, ahora, ahora es, ahora mismo son las, ahora mismo es, actualmente son las,
    actualmente es, actualmente es la, en este momento son las, estamos a, estamos en,
    heure actuelle, date actuelle, date et heure actuelles, date et heure actuelle, date et l'heure actuelles,
    date actuelle et heure, date et l'heure actuelle, heure et date actuelles,
    jour actuel, heure locale, heure locale actuelle, heure système, heure courante, date courante,
    date et heure courantes, l'heure actuelle, l'heure locale, l'heure est, l'heure, il est, il est actuellement,
    il est maintenant, il est à présent, il est exactement, maintenant, maintenant il est, actuellement il est,
    actuellement, en ce moment il est, date est, heure est";

const TODAY: &str = "today, today is, today's date, today's date is, today's day, today's date and time, today it is,
    today date, todays date time,
    heute, heute ist, heute ist der, heutiges Datum, heutige Datum, heutiger Tag, heutiger Wochentag,
    heute haben wir, wir haben heute, wir schreiben, wir schreiben heute, heutiges Datum und Uhrzeit, Datum heute,
    dzisiaj, dzisiaj jest, dziś, dziś jest, dzisiejsza data, dzisiejsza data to, dzisiejszy dzień, dzisiaj mamy,
    dziś mamy, mamy dzisiaj, mamy dziś, jest dzisiaj, dzień dzisiejszy,
    astăzi, astăzi este, astăzi e, azi, azi este, azi e, azi suntem în, astăzi suntem în, data de astăzi,
    data de astăzi este, data de azi, data de azi este, ziua de astăzi, ziua de azi, data zilei,
    сегодня, сегодняшняя дата, сегодняшний день, дата сегодня, сегодня у нас,
    hoy, hoy es, hoy es el, hoy es día, la fecha de hoy, fecha de hoy, fecha de hoy es, hoy estamos a, día de hoy,
    aujourd'hui, aujourd'hui c'est, aujourd'hui nous sommes, aujourd'hui nous sommes le, aujourd'hui on est,
    nous sommes, nous sommes le, nous sommes aujourd'hui, nous sommes aujourd'hui le, on est, on est le,
    date du jour, date d'aujourd'hui, la date d'aujourd'hui";

const LABELS: &str = "time, date, date and time, time and date, datetime, date time, clock,
    Uhrzeit, Zeit, Datum, Datum und Uhrzeit, Datum Uhrzeit, Uhrzeit und Datum, Datum und Zeit, Zeitpunkt,
    godzina, czas, data, data i godzina, data i czas, data oraz godzina, zegar,
    ora, data și ora, ora și data, ceas,
    время, дата, дата и время, время и дата, часы,
    hora, fecha, fecha y hora, hora y fecha,
    heure, date et heure, heure et date, horloge";

const STAMPS: &str = "timestamp, time stamp, current timestamp, unix timestamp, unix time, unix epoch, unix, epoch,
    epoch time, epoch seconds, epoch milliseconds, epoch ms, unix ms, unix time ms, current unix time,
    current unix timestamp, current epoch, current epoch time, now ms, now unix, as of, state as of, states as of,
    UTC timestamp, Zeitstempel, aktueller Zeitstempel, Unixzeit, Unix-Zeit, Unix-Zeitstempel, Stand,
    znacznik czasu, aktualny znacznik czasu, czas unix, stan na, stan na dzień, marcaj temporal, timp unix,
    метка времени, временная метка, unix время, marca de tiempo, marca temporal, tiempo unix,
    horodatage, temps unix, horodatage unix";

const ASIDES: &str = "the, note, note that, please note, please note that, please note the, for reference,
    for your reference, for your information, for context, for information, FYI, context, info, information,
    important, remember, remember that, reminder, keep in mind that, be aware that, you should know that, know that,
    hint, system,
    der, die, das, Hinweis, beachte, bitte beachte, zur Information, zu deiner Information, wichtig, Info, Kontext,
    uwaga, informacja, pamiętaj, pamiętaj że, kontekst, ważne, notă, notă că, reține că, atenție, informație,
    important, примечание, внимание, справка, помни, помни что, учти, учти что, для справки, контекст,
    el, la, los, nota, ten en cuenta que, recuerda que, información, contexto, importante,
    le, les, note que, remarque, à noter, pour information, contexte, rappel";

const NONCES: &str = "request, request id, x request id, req id, trace, trace id, x trace id, session, session id,
    x session id, correlation, correlation id, x correlation id, nonce, run id, invocation id, conversation id,
    chat id, span id, thread id, request uuid, session uuid, request token, cache buster, cachebuster,
    Anfrage, Anfrage-ID, Sitzung, Sitzungs-ID, identyfikator żądania, ID żądania, identyfikator sesji, ID sesji,
    ID cerere, ID sesiune, ID запроса, идентификатор запроса, ID сессии, ID сеанса, ID de solicitud,
    ID de la solicitud, ID de sesión, ID de requête, identifiant de requête, ID de session, identifiant de session";

const FILLERS: &str =
    "weekday wochentag is it now currently the a at on of and exactly about day date today th st nd rd week
    ist es der den dem am um und jetzt gerade genau datum tag heute
    jest to teraz dnia dzień dziś dzisiaj roku rok r i oraz o data
    este e acum ziua de data la și si anul zi
    и г год года сегодня сейчас число числа дата ровно утра дня вечера ночи года местного по времени
    las el los la del de y son día hoy ahora fecha a año
    le et il est jour nous sommes l c maintenant er
    morgens mittags nachmittags abends nachts vormittags rano wieczorem dimineața seara
    central european eastern pacific mountain standard daylight summer local locale locala locală lokalnego czasu
    zeit ortszeit
    cet cest mez mesz eet eest wet west bst ist est edt cst cdt mst mdt pst pdt akst akdt hst msk jst kst aest aedt
    awst acst acdt nzst nzdt sast sgt hkt мск";

/// Monday first; genitives and short forms beside the nominative.
const WEEKDAYS: [&str; 12] = [
    "monday mon montag mo poniedziałek poniedziałku pon luni lunea lun понедельник понедельника понедельнику пн
     lunes lundi",
    "tuesday tue tues dienstag di wtorek wtorku wt marți marţi marțea вторник вторника вт martes mardi",
    "wednesday wed weds mittwoch mi środa środę środy śr sr miercuri miercurea mie среда среду среды ср miércoles mié
     mercredi mer",
    "thursday thu thur thurs donnerstag do czwartek czwartku czw joi joia четверг четверга чт jueves jue jeudi jeu",
    "friday fri freitag fr piątek piątku pt pią vineri vinerea vin пятница пятницу пятницы пт viernes vie vendredi ven",
    "saturday sat samstag sonnabend sa sobota sobotę soboty sob sâmbătă sambata sâmbăta sâm суббота субботу субботы сб
     sábado sáb samedi sam",
    "sunday sun sonntag so niedziela niedzielę niedzieli niedz nd ndz duminică duminica dum воскресенье воскресенья вс
     domingo dom dimanche dim",
    "",
    "",
    "",
    "",
    "",
];

const MONTHS: [&str; 12] = [
    "january jan januar jänner styczeń stycznia sty ianuarie ian январь января янв enero ene janvier janv",
    "february feb februar luty lutego lut februarie февраль февраля фев февр febrero février févr fév",
    "march märz mär mrz marzec marca martie март марта мар marzo mars",
    "april apr kwiecień kwietnia kwi aprilie апрель апреля апр abril abr avril avr",
    "may mai maj maja май мая mayo",
    "june jun juni czerwiec czerwca cze iunie iun июнь июня июн junio juin",
    "july jul juli lipiec lipca lip iulie iul июль июля июл julio juillet juil",
    "august aug sierpień sierpnia sie август августа авг agosto ago août",
    "september sep sept wrzesień września wrz septembrie сентябрь сентября сен сент septiembre setiembre set septembre",
    "october oct oktober okt październik października paź octombrie октябрь октября окт octubre octobre",
    "november nov listopad listopada lis noiembrie noi nov ноябрь ноября ноя нояб noviembre novembre",
    "december dec dezember dez grudzień grudnia gru decembrie декабрь декабря дек diciembre dic décembre déc",
];
