from rescorer.cli import main

main()
