"""The words that tell what a tool touches: data, in one form each (plurals are taken apart before).

They are general: kinds of things and of deeds, not names of products.
"""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Whoever's data it is, it is not everybody's.
PRIVATE = _words(
    """
    account address alert analytics appointment asset attachment backup balance bank billing
    blob board booking branch bucket calendar campaign candidate card cart chat clipboard
    cluster commit company contact container context contract conversation credential crm
    customer dashboard data database dataset deal device diff directory document drive dynamodb
    email employee entity entry env environment event file finance folder graph health history
    inbox incident instance invoice issue item job key knowledge lead ledger log mail mailbox
    medical meeting member memory message metric model mongodb namespace note notebook
    observation opportunity order organization page password patient payment payroll person
    photo pipeline pod postgres private profile project pull purchase query record recording
    redis repo report repository resource role row salary schedule schema screenshot secret
    server sheet spreadsheet sql stack storage subscriber subscription table task team tenant
    thread ticket todo token trace transaction user variable vault vector volume workflow
    workspace
    """
)
# What people outside may have written.
UNTRUSTED = _words(
    """
    answer article attachment blog browse browser channel chat comment conversation crawl
    discussion email feed feedback fetch forum gist guestbook html http inbox internet issue
    mail mailbox merge message news notification page podcast post pr pull question reply review
    rss scrape slack sms submission survey thread ticket transcript tweet url video web webpage
    website wiki wikipedia youtube
    """
)
READS = _words(
    """
    browse check count describe download explain extract fetch find get grep inspect list load
    look lookup open peek poll preview query read receive resolve retrieve scan search select
    show snapshot stat status summarize tail tree view watch
    """
)
# A deed whose effect is somewhere else.
SENDS = _words(
    """
    broadcast curl deliver dispatch email forward invite mail navigate notify post publish push
    reply request send share submit text transfer transmit tweet upload webhook wget
    """
)
MAKES = _words(
    """
    add append approve assign book buy close comment commit copy create delete deploy edit
    export import insert install make merge modify move open order patch pay put register remove
    rename reopen replace review save schedule set start store sync trigger update upsert write
    """
)
# Made or changed, they are seen by others.
PUBLIC = _words(
    """
    announcement answer blog comment discussion dns email event fork gist invitation invite
    issue mail meeting merge message notification page post pr pull release review status story
    tag ticket tweet webhook website wiki
    """
)
# Where things lie that nobody else reads.
LOCAL = _words(
    """
    context database directory entity env file folder graph knowledge memory note observation
    relation row sql table todo variable
    """
)
RUNS = _words("bash console eval exec execute invoke repl run shell spawn ssh terminal")
CODE = _words("bash cmd code command javascript js powershell program python script shell terminal")
# Arguments that say where to: an address, or somebody.
ADDRESSES = _words("callback endpoint href link site uri uris url urls webhook webpage website")
RECIPIENTS = _words("attendee attendees bcc cc mailto recipient recipients to")
TEXTS = _words("attachment body comment content message subject text")
# Pure: what they answer is made of their arguments, or of the clock.
PURE = _words(
    """
    add addition average base64 calculate calculation calculator clock coin color compare
    compute convert converter count currency date datetime day decode dice distance divide
    division echo encode evaluate expression factorial fibonacci flip format greet hash hello
    hypotenuse ipsum lorem math max md5 mean median min modulo month multiplication multiply now
    number parse ping power prime product random roll root round sequential sha sha256 sin sleep
    slugify sort sqrt square statistics subtract subtraction sum temperature think thinking
    thought time timer timezone today unit uuid validate wait week weekday year
    """
)
FILLER = _words(
    """
    a an and as at be by call current do for from function generate get in into is it json list
    local make new of on one or out please return run say server set simple string test text the
    this to tool two value what with xml yaml zone
    """
)
